"""Ways to damage, lose or swap the files of a run's checkpoints."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mutants import damaged, mutated


@dataclass(frozen=True)
class Site:
    """The folder of a run, that of another run, and the random generator."""

    folder: Path
    other: Path
    dice: random.Random

    def files(self, *suffixes: str) -> list[Path]:
        """Return the files of the checkpoints, and both copies of the records; some may be missing."""
        found = [*(self.folder / "checkpoints").iterdir(), self.folder / "rounds.jsonl"]
        return sorted(f for f in found if is_plain(f) and (not suffixes or f.suffix in suffixes))

    def file(self, *suffixes: str) -> Path | None:
        """Return one of these files, if there are any."""
        found = self.files(*suffixes)
        return self.dice.choice(found) if found else None

    def round(self) -> int:
        """Return a possible round number."""
        return self.dice.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 999999, 1000001))


def is_plain(file: Path) -> bool:
    """Return whether this is a readable file."""
    return file.is_file() and not file.is_symlink() and file.stat().st_size < 1 << 24


Damage = Callable[[Site], object]


def changed(change: Callable[[bytearray, random.Random], object], *suffixes: str) -> Damage:
    """Change the bytes of a file."""

    def damage(site: Site) -> None:
        if (file := site.file(*suffixes)) is not None:
            data = bytearray(file.read_bytes())
            if data:
                change(data, site.dice)
            file.write_bytes(data)

    return damage


def flip(data: bytearray, dice: random.Random) -> None:
    """Flip one bit."""
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def flips(data: bytearray, dice: random.Random) -> None:
    """Flip several bits."""
    for _ in range(dice.randrange(2, 50)):
        flip(data, dice)


def cut(data: bytearray, dice: random.Random) -> None:
    """Truncate the file."""
    del data[dice.randrange(len(data)) :]


def zero_end(data: bytearray, dice: random.Random) -> None:
    """Replace the end by zeros, as after a power cut."""
    at = dice.randrange(len(data))
    data[at:] = bytes(len(data) - at)


def block(data: bytearray, dice: random.Random) -> None:
    """Change some bytes."""
    at = dice.randrange(len(data))
    to = min(len(data), at + dice.choice((4, 64, 4096)))
    data[at:to] = dice.randbytes(to - at)


def some_bytes(data: bytearray, dice: random.Random) -> None:
    """Insert bytes that parsers have problems with."""
    data[:] = damaged(bytes(data), dice)


def grown(data: bytearray, dice: random.Random) -> None:
    """Append bytes."""
    data += dice.randbytes(dice.choice((1, 8, 1000)))


def reordered(data: bytearray, dice: random.Random) -> None:
    """Reorder or duplicate lines."""
    lines = bytes(data).splitlines(keepends=True)
    data[:] = b"".join(dice.choices(lines, k=len(lines)))


def replaced_by(make: Callable[[Path, random.Random], object]) -> Damage:
    """Replace a file by something else."""

    def damage(site: Site) -> None:
        if (file := site.file()) is not None:
            file.unlink()
            make(file, site.dice)

    return damage


def huge(file: Path, _: random.Random) -> None:
    """Create a sparse file of 1 TB."""
    with file.open("wb") as handle:
        handle.truncate(1 << 40)


def two(act: Callable[[Path, Path], object]) -> Damage:
    """Apply a function to two files of the same kind."""

    def damage(site: Site) -> None:
        found = site.files(site.dice.choice((".json", ".safetensors", ".jsonl")))
        if len(found) > 1:
            act(*site.dice.sample(found, 2))

    return damage


def swap(one: Path, other: Path) -> None:
    """Swap the contents."""
    first = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(first)


def from_elsewhere(site: Site) -> None:
    """Replace a file by that of another run."""
    theirs = sorted((site.other / "checkpoints").iterdir())
    mine = site.file()
    if mine is not None:
        same = [file for file in theirs if file.suffix == mine.suffix]
        mine.write_bytes(site.dice.choice(same).read_bytes())


def whole_generation(site: Site) -> None:
    """Replace all checkpoints by those of another run."""
    for file in (site.other / "checkpoints").iterdir():
        mine = site.folder / "checkpoints" / file.name
        if (file.suffix != ".jsonl" or site.dice.random() < 0.5) and (mine.is_file() or not os.path.lexists(mine)):
            shutil.copy(file, mine)


def duplicated(site: Site) -> None:
    """Duplicate a generation under another number."""
    if (manifest := site.file(".json")) is not None:
        number = site.round()
        for suffix in (".json", ".safetensors"):
            file, twin = manifest.with_suffix(suffix), manifest.with_name(f"{number:06d}{suffix}")
            if is_plain(file) and not twin.exists():
                shutil.copy(file, twin)


def renamed(site: Site) -> None:
    """Rename a file to another number or spelling."""
    if (file := site.file(".json", ".safetensors")) is not None:
        number = site.round()
        name = site.dice.choice((f"{number:06d}", f"{number}", f"{number:09d}", "x", "-1", "٣"))
        os.replace(file, file.with_name(f"{name}{file.suffix}"))


def edited(site: Site) -> None:
    """Edit a manifest but keep its old hash."""
    if (file := site.file(".json")) is not None:
        try:
            claim = json.loads(file.read_bytes())
            hash_of_it = claim.pop("sha256")
            text = json.dumps({**mutated(claim, site.dice), "sha256": hash_of_it}, default=str)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            return  # already damaged, or the drawn value cannot be written
        file.write_bytes(text.encode(errors="replace"))


def older_records(site: Site) -> None:
    """Remove the last rounds from the records."""
    for log in site.dice.sample([site.folder / "rounds.jsonl", site.folder / "checkpoints" / "rounds.jsonl"], 1):
        if is_plain(log):
            lines = log.read_bytes().splitlines(keepends=True)
            log.write_bytes(b"".join(lines[: site.dice.randrange(len(lines) + 1)]))


def leftovers(site: Site) -> None:
    """Add temporary files of a killed process."""
    for name in ("checkpoints/.000006.json.part", "checkpoints/.000006.safetensors.part", ".run.json.part", "run.lock"):
        if site.dice.random() < 0.5:
            (site.folder / name).write_bytes(site.dice.randbytes(site.dice.choice((0, 10, 1000))))


DAMAGE: dict[str, Damage] = {
    "a flipped bit": changed(flip),
    "a flipped bit in a manifest": changed(flip, ".json"),
    "a flipped bit in the weights": changed(flip, ".safetensors"),
    "a flipped bit in the records": changed(flip, ".jsonl"),
    "flipped bits": changed(flips),
    "cut off": changed(cut),
    "a manifest cut off": changed(cut, ".json"),
    "zeros at the end": changed(zero_end),
    "all zeros": changed(lambda data, _: data.__setitem__(slice(None), bytes(len(data)))),
    "emptied": changed(lambda data, _: data.clear()),
    "other bytes": changed(block),
    "strange bytes": changed(some_bytes),
    "strange bytes in a manifest": changed(some_bytes, ".json"),
    "more at the end": changed(grown),
    "records in another order": changed(reordered, ".jsonl"),
    "deleted": replaced_by(lambda *_: None),
    "a folder in its place": replaced_by(lambda file, _: file.mkdir()),
    "a link to itself": replaced_by(lambda file, _: file.symlink_to(file)),
    "a link to nothing": replaced_by(lambda file, _: file.symlink_to("nowhere")),
    "a link to an endless file": replaced_by(lambda file, _: file.symlink_to("/dev/zero")),
    "a pipe": replaced_by(lambda file, _: os.mkfifo(file)),
    "a file of 1 TB": replaced_by(huge),
    "two files swapped": two(swap),
    "one file twice": two(lambda one, other: shutil.copy(one, other)),
    "a file of another run": from_elsewhere,
    "the checkpoints of another run": whole_generation,
    "a generation twice": duplicated,
    "another number": renamed,
    "an edited manifest": edited,
    "older records": older_records,
    "leftovers": leftovers,
}

__all__ = ["DAMAGE", "Damage", "Site", "is_plain"]
