"""DaFKD: clients' domain discriminators say, sample by sample, whose model should teach the average."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from fedalloy.aggregation.averaging import average
from fedalloy.aggregation.robust import nearest
from fedalloy.base.tree import Tree
from fedalloy.data.samples import Samples
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, initial, method, reply
from fedalloy.federation.gate import Check, Contract, array, like, whole
from fedalloy.federation.setting import SERVER
from fedalloy.knowledge.domains import TwoHeads, discriminator_loss, domain_head, generator_loss, gradient_penalty
from fedalloy.knowledge.importance import distance_to, ensemble, ensemble_of_products, importance, importance_by_class
from fedalloy.knowledge.pictures import Images
from fedalloy.methods.dafkd_options import DaFKDOptions
from fedalloy.nets.generators import FeatureGenerator, adversarial_generator
from fedalloy.nets.models import in_two_parts
from fedalloy.train.fit import LocalWork, aside, fit, frozen, load, params
from fedalloy.train.losses import ce
from fedalloy.train.optimisers import adam

EARLY_EPOCHS, EARLY_DISCRIMINATOR, EARLY_GENERATOR = 5, 3, 5  # of `gan_window = "early"`: epochs; rounds of each


@method(
    "dafkd",
    label="DaFKD",
    card=Card(
        paper="Wang et al., CVPR 2023",
        up="model, generator, discriminator's head, n",
        down="model, generator",
        distils="the active clients' models, weighted sample by sample, on generated images, into their average",
        leaves_client="model weights, a generator of its data, how like its data a sample is, number of samples",
        features=True,
        remembers="its discriminator's head",
        quick={"noise": 4, "generator_width": 8, "distil_samples": 12, "distil_batch": 4, "distil_steps": 3},
    ),
)
class DaFKD(DaFKDOptions):
    """Distil the clients' models into their average, each weighted by how like its own data a sample is.

    A client trains three networks: the classifier w_k, a discriminator theta_k^d that tells its data from generated
    ones, and the generator theta_k^g. Discriminator and classifier share their layers but for the last and are trained
    together, L_J = CE + L_adv (Eq. 9); then the generator takes a step against the discriminator (Eq. 3). L_adv never
    sees a label, so that the labels of the conditional generator act as further noise, as in the paper's text. The
    server averages generators (Eq. 4) and models (Eq. 6), makes `distil_samples` samples, and weighs each client's
    answer to a sample by its discriminator's, f(theta_k^d; x) over the sum of all (Eq. 7). The average learns the
    weighted answers (Eq. 8); they and the weights are computed once a round. The discriminator's head stays with its
    client and goes on from there in the client's next round (Algorithm 1, line 18). The state's `importance` holds each
    client's mean weight for each class of the last distillation, 0 for clients that were not there.

    `variant` chooses where the paper and its code differ, and a switch given by hand overrides it:

    | switch | recommended | paper | reference (the code) |
    |---|---|---|---|
    | `weights` of Eq. 4 and 6 | uniform | uniform | size |
    | `personal_heads` | yes | yes | no: one head for all, averaged (see below) |
    | `adversarial`: weight of L_adv | 1 | 1 (Eq. 2 and 9) | 2: a mean over real plus one over made samples |
    | `saturating`: generator's loss | log(1 - f) | log(1 - f) (Eq. 3) | -log f |
    | `gradient_penalty` | 0 | 0 | 0.3 |
    | `gan_window` | always | always | early: rounds 1 to 3 (generator: 5), epochs 1 to 5 |
    | `generator_lr`, `generator_weight_decay` | 0.001 | 0.001 | 0.0001 |
    | `generator_kind` | conditional | conditional, uniform labels | unconditional, by transposed convolutions |
    | `pseudo_from`: which generator | new | new, of Eq. 4 (line 11 says a client's) | old, the one sent out |
    | `kd_start`: first distillation | 1 | 1 | 2 |
    | `ensemble` weighs | prob | prob (Eq. 8) | logit |
    | `tau`, `kd_scale` | 1, plain | 1, plain | 20, tau^2 and the mean over classes |
    | `student_mode` | eval | train | train |
    | `distil_steps` of `distil_batch` | 200 | unsaid; 200 | 1600 |
    | `distil_optimiser`, `distil_lr` | sgd, 0.01 | unsaid, 0.01 | adam, 0.0001 |

    In training mode, BatchNorm's running statistics become those of generated images; in eval mode the student is, as
    its teachers are, what will be deployed, and one client alone teaches its average nothing. `resnet11` has eleven
    layers, as its name says; the code's has twenty (`blocks = [2, 2, 2]`). Left out of the reference: learning rates
    that fall on a plateau, the generator's betas and AMSGrad, teachers in training mode, and that the one head goes
    from client to client, which would let their order decide; it is averaged like the model instead. Where a round is
    less than five epochs long, `gan_window = "early"` depends on the round alone.

    In the runs under `results` the generator covered only some of the classes, and a shared trunk did worse than a
    discriminator of its own on SVHN (one seed). Look at what is generated (`fedalloy draw RUN`) before you rely on it.

    Ablations: `sharing = false` gives the discriminator a trunk of its own, which is kept and sent with its head
    (`shared_layers` is in between: how many of its first layers are the classifier's); `correlation = false` lets all
    teachers count alike. `generator_output = "features"` generates what enters the heads, by FedGen's generator, as
    the paper suggests for privacy; then only the average's head is distilled.

    `upload` says what the server learns of the discriminators. `head`: the head itself. `scores`: the clients make the
    samples themselves, from the generator and a number, and send f for each. `predictions`: they send f times their
    probabilities. The teacher is the same but for rounding; both need a second exchange, since the new generator is not
    known before. The server needs no more than the sum of these products; as it gets them one by one, and has the
    models, each product still tells it f, until a secure sum hides them. Scores are what clients say about themselves:
    they are bounded, and `max_share` limits what one client can get of a sample. `combine = "krum"` (not the paper's)
    lets the share `trim` of clients, whose models lie farthest from the others', neither into the averages nor teach.

    Theorem 1 says that at the optimum f = p_k / (p_k + p_g), as a test shows, and that p_g is the mean of all p_k. The
    latter holds only in special cases: the optimum of Eq. 5 is the distribution with the least sum of Jensen-Shannon
    divergences from the p_k, such as (0.77, 0.23) for (1, 0), (1, 0) and (0, 1).

    >>> DaFKD(variant="reference").use.tau, DaFKD(variant="reference", tau=2.0).use.tau
    (20.0, 2.0)
    """

    def weigh(self, sizes: Sequence[int], counts: Sequence[Tensor]) -> list[float]:
        """The weight of each client before normalisation (Eq. 4 and 6)."""
        if self.weights == "disco":
            return super().weigh(sizes, counts)
        return [float(n) for n in sizes] if self.use.weights == "size" else [1.0] * len(sizes)

    def distils(self, round: int) -> bool:
        """Whether there is distillation in a round."""
        return self.use.distil_steps > 0 and round >= self.use.kd_start

    # --- the server (Algorithm 1, lines 1 to 14) --------------------------------------------------------------------

    def init(self, fed: Federation) -> Tree:
        """One model and one generator for all (line 2)."""
        two = self.two_heads(fed)
        state = {**super().init(fed), "generator": params(self.new_generator(fed, two))}
        if not self.use.personal_heads:
            state["head"] = two.own_weights()
        return state

    def round(self, s: State, fed: Federation) -> State:
        """One round: send, train, average, distil."""
        shared = ["model", "generator"] if self.use.personal_heads else ["model", "generator", "head"]
        replies = fed.ask("train", fed.sample(), **{name: s[name] for name in shared})
        if not replies:
            return s.next()
        replies = self.trusted(s, replies)
        counts = [r["counts"] for r in replies if "counts" in r]
        weights = self.bounded_weights([r["n"] for r in replies], counts, fed.cap)
        mean = {name: average([r[name] for r in replies], weights, s[name]) for name in shared}  # Eq. 4 and 6
        if self.distils(fed.round):
            source = mean["generator"] if self.use.pseudo_from == "new" else s["generator"]
            mean |= self.distil(fed, replies, mean["model"], source)
        return s.next(**mean, **self.cached(s, replies))

    def trusted(self, s: State, replies: Sequence[Message]) -> list[Message]:
        """The replies that count at all: with `combine = "krum"`, of the clients whose models Krum keeps."""
        if self.combine != "krum":
            return list(replies)
        return [replies[place] for place in nearest([r["model"] for r in replies], s["model"], self.trim)]

    def distil(self, fed: Federation, replies: Sequence[Message], model: Tree, generator: Tree) -> dict[str, Any]:
        """The averaged model after learning from the clients' (Eq. 8), and each client's importance for each class."""
        use, features = self.use, self.generator_output == "features"
        number = int(torch.randint(2**62, (), generator=fed.rng("pseudo set")))
        two = self.two_heads(fed)
        x = self.pseudo_set(fed, two, generator, number)
        found = self.teacher(fed, replies, two, x, generator=generator, number=number)
        if found is None:
            return {}
        teacher, table = found
        rows = torch.arange(len(x), device=x.device)
        work = LocalWork(batch=self.distil_batch, optimiser=use.distil_optimiser, lr=use.distil_lr)
        # Not images to be augmented, and instead of a label each sample has the number of its row.
        me = replace(fed.learner(Samples(x, rows, rows), use.distil_steps), work=work, augment=None)
        student = in_two_parts(me.net(model), self.name)
        student.features.requires_grad_(not features)

        def loss(x: Tensor, rows: Tensor) -> Tensor:
            student.train(use.student_mode == "train")
            return distance_to(teacher[rows], student.head(x) if features else student(x), use.tau, use.kd_scale)

        fit(student, me, loss, stage="distillation")
        return {"model": params(student), **table}

    def teacher(
        self, fed: Federation, replies: Sequence[Message], two: TwoHeads, x: Tensor, **made_from: Any
    ) -> tuple[Tensor, dict[str, Any]] | None:
        """The clients' weighted answers to the samples (Eq. 7 and 8) and the table of importance; None if none came."""
        if not self.correlation:
            scores, logits = torch.ones(len(replies), len(x), device=x.device), self.logits(two, replies, x)
        elif self.upload == "head":
            both = [self.opinions(two.load(r["model"], r["head"]), x) for r in replies]
            scores, logits = (torch.stack(part) for part in zip(*both, strict=True))
        else:
            told = {r.client: r for r in fed.ask("score", [r.client for r in replies], **made_from)}
            replies = [r for r in replies if r.client in told]
            if not replies:
                return None
            if self.upload == "predictions":
                return self.teacher_from_products([told[r.client]["soft"] for r in replies], two, replies, x), {}
            scores, logits = torch.stack([told[r.client]["scores"] for r in replies]), self.logits(two, replies, x)
        shares = importance(scores, self.max_share)  # Eq. 7
        teacher = ensemble(shares, logits, self.use.tau, self.use.ensemble)
        table = torch.zeros(len(fed.sizes), fed.classes)
        table[[r.client for r in replies]] = importance_by_class(shares, teacher[:, : fed.classes]).cpu()
        return teacher, {"importance": table}

    def teacher_from_products(
        self, products: Sequence[Tensor], two: TwoHeads, replies: Sequence[Message], x: Tensor
    ) -> Tensor:
        """The same teacher from what `predictions` sends; samples that all disown are taught by all alike."""
        teacher, known = ensemble_of_products(torch.stack(list(products)))
        if not known.all():
            rest = x[~known]
            alike = importance(torch.ones(len(replies), len(rest), device=x.device))
            teacher[~known] = ensemble(alike, self.logits(two, replies, rest), self.use.tau)
        return teacher

    def logits(self, two: TwoHeads, replies: Sequence[Message], x: Tensor) -> Tensor:
        """What the clients' classifiers make of the samples (K, N, classes)."""
        answer: nn.Module = two.net.head if self.generator_output == "features" else two.net
        frozen(two)
        found = []
        for r in replies:
            load(two.net, r["model"])
            found.append(_in_batches(lambda part: (answer(part),), x)[0])
        return torch.stack(found)

    def leaves(self) -> str:
        """What leaves a client: with `upload = "predictions"` it says for itself what the samples are."""
        usual, own = super().leaves(), "predictions for generated samples, weighed by how like its data they are"
        return usual.replace("how like its data a sample is", own) if self.upload == "predictions" else usual

    def expects(self, message: Message, fed: Federation) -> Contract:
        """Models like those that were sent and, where it leaves the client, a head; or scores of the pseudo set."""
        if message.action == "score":
            number = self.distil_samples
            if self.upload == "scores":
                return {"scores": array(number)}  # scores outside 0 and 1 are clamped, not refused
            return {"soft": array(number, fed.outputs, least=0.0, most=1.0)}
        contract: dict[str, Check] = {**super().expects(message, fed), "generator": like(message["generator"])}
        if not self.use.personal_heads:
            return {**contract, "head": like(message["head"])}
        if self.upload == "head" and self.correlation and self.distils(fed.round):
            contract["head"] = like(self.two_heads(fed).own_weights())
        return contract

    # --- a client (Algorithm 1, lines 15 to 26) ---------------------------------------------------------------------

    def accepts(self, action: str, me: Client) -> Contract:
        """Model, generator and, where there is one for all, head; or what the pseudo set is made from."""
        two = self.two_heads(me)
        generator = like(params(self.new_generator(me, two)))
        if action == "score":
            return {"generator": generator, "number": whole(0, 2**62 - 1)}
        contract: dict[str, Check] = {**super().accepts(action, me), "generator": generator}
        return contract if self.use.personal_heads else {**contract, "head": like(two.own_weights())}

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        """Classifier, discriminator and generator, trained together."""
        two = self.two_heads(me)
        two.load(msg["model"], msg["head"] if "head" in msg else me.memory.get("head", two.own_weights()))
        generator = load(self.new_generator(me, two), msg["generator"]).train()
        self.play(me, two, generator)
        answer = {"model": params(two.net), "generator": params(generator), **self.about(me)}
        if not self.use.personal_heads:
            return reply(**answer, head=two.own_weights())
        keep: dict[str, Any] = {"head": two.own_weights()}
        if self.correlation and self.distils(me.round):
            if self.upload == "head":
                answer["head"] = keep["head"]
            else:
                keep["model"] = answer["model"]  # until it is asked for scores
        return reply(**answer, keep=keep)

    def play(self, me: Client, two: TwoHeads, generator: nn.Module) -> None:
        """Joint steps of both heads (Eq. 9), each followed by a step of the generator against them (Eq. 3)."""
        use, features = self.use, self.generator_output == "features"
        optimiser = adam(generator.parameters(), use.generator_lr, use.generator_weight_decay)
        noise, dropout, between = me.rng("generator"), me.rng("generator/dropout"), me.rng("generator/penalty")
        steps, epoch, batch = _epochs(me), 0, 0

        def made() -> Tensor:
            samples: Tensor = generator(*self.drawn(generator, me.classes, max(2, batch), noise))  # BatchNorm needs two
            return samples

        enter = self.entrance(two)

        def judge(samples: Tensor) -> Tensor:
            return two.judge(enter(samples))

        def playing(rounds: int) -> bool:
            return use.gan_window == "always" or (me.round <= rounds and epoch < EARLY_EPOCHS)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            nonlocal epoch, batch
            epoch, batch = next(steps), len(x)
            z = two.net.features(x) if features else x
            logits, real = two.both(enter(z))
            total = ce(logits, y)
            if playing(EARLY_DISCRIMINATOR):
                with torch.no_grad():
                    samples = made()
                with aside(two, dropout):
                    total = total + use.adversarial * discriminator_loss(real, judge(samples))  # Eq. 2 in Eq. 9
                    if use.gradient_penalty:
                        slope = gradient_penalty(judge, z, samples, between)
                        total = total + use.gradient_penalty * slope
            return total

        def improve_generator() -> None:
            if playing(EARLY_GENERATOR):
                with aside(two, dropout):
                    against = generator_loss(judge(made()), saturating=use.saturating)  # Eq. 3
                optimiser.zero_grad()
                against.backward(inputs=list(generator.parameters()))  # type: ignore[no-untyped-call]  # torch's
                optimiser.step()

        fit(two, me, loss, after=improve_generator)

    @action
    def score(self, me: Client, msg: Message) -> Reply:
        """How like its own data the client finds the samples, which it makes itself; its head stays where it is."""
        two = self.two_heads(me).load(me.memory["model"], me.memory["head"])
        scores, logits = self.opinions(two, self.pseudo_set(me, two, msg["generator"], msg["number"]))
        keep = {"head": me.memory["head"]}
        if self.upload == "scores":
            return reply(scores=scores, keep=keep)
        return reply(soft=scores[:, None] * (logits / self.use.tau).softmax(1), keep=keep)

    # --- both -------------------------------------------------------------------------------------------------------

    def opinions(self, two: TwoHeads, x: Tensor) -> tuple[Tensor, Tensor]:
        """What a client makes of the samples: alpha = f(theta_k^d; x), and its classifier's logits."""
        frozen(two)
        logits, domain = _in_batches(lambda part: two.both(self.entrance(two)(part)), x)
        return domain.sigmoid(), logits

    def entrance(self, two: TwoHeads) -> Callable[[Tensor], Tensor]:
        """Where generated samples go into the network: features behind the layers that make features."""
        return two.enter if self.generator_output == "features" else two.start

    def pseudo_set(self, where: Client | Federation, two: TwoHeads, weights: Tree, number: int) -> Tensor:
        """The distillation samples (line 11): whoever has the generator and the number makes the same."""
        generator = frozen(load(self.new_generator(where, two), weights))
        stream = torch.Generator().manual_seed(number)
        z, labels = self.drawn(generator, where.classes, self.distil_samples, stream)
        rows = torch.arange(len(z), device=z.device)
        return _in_batches(lambda part: (generator(z[part], labels[part]),), rows)[0]

    def drawn(self, generator: nn.Module, classes: int, n: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
        """Noise and uniform labels for n samples, where the generator is."""
        device = next(generator.parameters()).device
        z, labels = torch.randn(n, self.noise, generator=stream), torch.randint(classes, (n,), generator=stream)
        return z.to(device, non_blocking=True), labels.to(device, non_blocking=True)

    def two_heads(self, where: Client | Federation) -> TwoHeads:
        """Classifier and discriminator before any training, the same for all."""
        net = in_two_parts(where.build(), self.name)
        device = next(net.parameters()).device
        head = initial(partial(domain_head, net.projected_shape), where.seed, device=device, purpose="discriminator")
        shared = self.shared_layers if self.sharing else 0
        fresh = net if shared is None else in_two_parts(where.build(), self.name)
        return TwoHeads(net, fresh, head, shared, where.meter)

    def new_generator(self, where: Client | Federation, two: TwoHeads) -> nn.Module:
        """The generator before any training, the same for all."""
        if self.generator_output == "features":
            return where.generator(partial(FeatureGenerator, two.net.feature_shape, where.classes, self.noise))
        make = partial(
            adversarial_generator, kind=self.use.generator_kind, noise=self.noise, width=self.generator_width
        )
        return where.generator(partial(make, where.shape, where.scale, where.classes))

    def pictures(self, s: State, memories: Mapping[int, Tree]) -> Mapping[str, Any]:
        """The clients' importance for each class, and the images of the averaged generator."""
        hidden = self.upload == "predictions" and self.correlation
        told = "with upload = 'predictions' the server does not learn it" if hidden else "nothing was distilled yet"
        images = Images(self.images, {SERVER: s["generator"]}, s["model"])
        made = images if self.generator_output == "images" else "the generator makes features"
        return {"importance": s.body.get("importance", told), "generated": made}

    def images(self, me: Client, weights: Tree, stream: torch.Generator, n: int) -> Tensor:
        """This many images, made as those for the distillation are."""
        number = int(torch.randint(2**62, (), generator=stream))
        return replace(self, distil_samples=n).pseudo_set(me, self.two_heads(me), weights, number)


def _epochs(me: Client) -> Iterator[int]:
    """The epoch, from 0, of each of the client's steps."""
    each = replace(me.work, work="epochs", epochs=1).steps_for(n=me.n, mean_size=me.n)
    return (step // each for step in count())


def _in_batches(answer: Callable[[Tensor], tuple[Tensor, ...]], x: Tensor, batch: int = 256) -> tuple[Tensor, ...]:
    """A function's answers to many samples, a batch at a time and without gradients."""
    with torch.no_grad():
        parts = [answer(part) for part in torch.split(x, batch)]
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))
