"""The published files of every data set: addresses, hashes and where each hash comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedalloy.data.fetch import RemoteFile

_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_FASHION_MIRRORS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)


def _mnist(name: str, sha256: str) -> RemoteFile:
    urls = tuple(mirror + name for mirror in _MNIST_MIRRORS)
    return RemoteFile(name, "mnist", f"sha256:{sha256}", urls, layouts=(f"MNIST/raw/{name}",))


def _fashion(name: str, sha256: str, debian: str) -> RemoteFile:
    urls = tuple(mirror + name for mirror in _FASHION_MIRRORS)
    return RemoteFile(
        name,
        "fashion-mnist",
        f"sha256:{sha256}",
        urls,
        layouts=(f"FashionMNIST/raw/{name}",),
        system=("/usr/share/datasets/fashion-mnist",),
        repacked=(f"sha256:{debian}",),
    )


# SHA-256 of files whose MD5 is the published one (f68b3c2d..., d53e105e..., 9fb629c4..., ec29112d...); both checked.
MNIST = (
    _mnist("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    _mnist("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    _mnist("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    _mnist("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
)

# SHA-256 of the bytes whose MD5 Zalando publishes (8d4fb7e6..., 25c81989..., bef4ecab..., bb300cfd...); both checked.
# Debian's package dataset-fashion-mnist only drops name and date from the gzip header: the second hash.
FASHION_MNIST = (
    _fashion(
        "train-images-idx3-ubyte.gz",
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    ),
    _fashion(
        "train-labels-idx1-ubyte.gz",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    ),
    _fashion(
        "t10k-images-idx3-ubyte.gz",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    ),
    _fashion(
        "t10k-labels-idx1-ubyte.gz",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
    ),
)

# The publishers give MD5 for CIFAR (c32a1d4a..., 03b5dce0...); torchvision checks the MD5 of EMNIST (58c8d27c...)
# and SVHN (e26dedcc..., eb5a983b...). The SHA-256 below are those that TensorFlow Datasets checks for the same files.
CIFAR10 = RemoteFile(
    "cifar-10-binary.tar.gz",
    "cifar10",
    "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    layouts=("cifar-10-binary.tar.gz",),
)
CIFAR100 = RemoteFile(
    "cifar-100-binary.tar.gz",
    "cifar100",
    "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
    layouts=("cifar-100-binary.tar.gz",),
)
EMNIST = RemoteFile(
    "gzip.zip",
    "emnist",
    "sha256:fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
    (
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
    ),
    layouts=("gzip.zip", "EMNIST/raw/gzip.zip"),
)
SVHN_TRAIN = RemoteFile(
    "train_32x32.mat",
    "svhn",
    "sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    ("http://ufldl.stanford.edu/housenumbers/train_32x32.mat",),
    layouts=("train_32x32.mat",),
)
SVHN_TEST = RemoteFile(
    "test_32x32.mat",
    "svhn",
    "sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    ("http://ufldl.stanford.edu/housenumbers/test_32x32.mat",),
    layouts=("test_32x32.mat",),
)
# The MD5 that loaders of CINIC-10 agree on; the university moved its archive, so there are two addresses.
CINIC10 = RemoteFile(
    "CINIC-10.tar.gz",
    "cinic10",
    "md5:6ee4d0c996905fe93221de577967a372",
    (
        "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
        "https://datashare.ed.ac.uk/server/api/core/bitstreams/e8e186cc-2688-48f1-aa5a-3fda1a43f8b6/content",
    ),
    layouts=("CINIC-10.tar.gz",),
)


def _heart(hospital: str, sha256: str) -> RemoteFile:
    name = f"processed.{hospital}.data"
    return RemoteFile(
        name,
        "heart-disease",
        f"sha256:{sha256}",
        (f"https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/{name}",),
        layouts=(name,),
    )


# UCI publishes no hashes. FLamby (github.com/owkin/FLamby, fed_heart_disease) checks the MD5 of its downloads from UCI
# (2d91a8ff..., 22e96bee..., 9a87f757..., 4249d03c...). These are the SHA-256 of bytes with that MD5; both checked.
HEART = (
    _heart("cleveland", "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8"),
    _heart("hungarian", "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796"),
    _heart("switzerland", "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314"),
    _heart("va", "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f"),
)


def _compact(name: str, home: str, sha256: str) -> RemoteFile:
    return RemoteFile(name, home, f"sha256:{sha256}", layouts=(name,))


# Compact copies for offline work. They cannot be downloaded and are only used if FEDALLOY_DATA contains them.
COMPACT_CIFAR10 = _compact("cifar10.npz", "cifar10", "d254c11de5c97211626fdcf2849fad367406c5ade45f64c48a15cda6c6513cdd")
COMPACT_CIFAR100 = _compact(
    "cifar100_10k.npz", "cifar100", "8dfe23b5cdfdfaf7e4bd6930c320428831c9ef70db22ef5404050a859749fb8d"
)
COMPACT_SVHN = _compact("svhn_20k.npz", "svhn", "0dda1fe30530be7d463b5d665e98147f655e3e77b28d7a71cb0593b475425b10")
COMPACT_EMNIST = _compact(
    "emnist_letters.npz", "emnist", "78ec4618cd145532e9f115655f57b31438fe0a83d66b8c49a939e17bdfb55a98"
)
# The same rows as in HEART, with a header and empty cells for missing values.
COMPACT_HEART = (
    RemoteFile("cleveland.csv", "heart", "sha256:c62392cce6a715ef063ff42c1557df0675df2d8612e272abed377932e8e475c7"),
    RemoteFile("hungarian.csv", "heart", "sha256:b612d844d8289d69a20009ab1d4a2f9e8adcc757b1ba36bf5cb612443d6ac64a"),
    RemoteFile("switzerland.csv", "heart", "sha256:ac8969224163f644e2030ed212891a861761aa33953acb4f225dd738288ce5b3"),
    RemoteFile("va.csv", "heart", "sha256:084648b78e5ad2640f77e5920929f0e5f138ce19bdd15347fcd84de0e95db331"),
)

# The published files of each data set, and the compact copies that are used if they are missing.
SETS: Mapping[str, tuple[Sequence[RemoteFile], Sequence[RemoteFile]]] = {
    "mnist": (MNIST, ()),
    "fashion-mnist": (FASHION_MNIST, ()),
    "emnist-letters": ((EMNIST,), (COMPACT_EMNIST,)),
    "svhn": ((SVHN_TRAIN, SVHN_TEST), (COMPACT_SVHN,)),
    "cifar10": ((CIFAR10,), (COMPACT_CIFAR10,)),
    "cifar100": ((CIFAR100,), (COMPACT_CIFAR100,)),
    "cinic10": ((CINIC10,), ()),
    "heart-disease": (HEART, COMPACT_HEART),
}
