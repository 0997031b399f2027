# SPDX-License-Identifier: Apache-2.0
"""What trnlab reads: for each kind of file a way to damage it, and to read it as a user does."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from tools.fuzz import mutate, sound, weights
from tools.fuzz.guard import BrokenError
from trnlab import chips, documents, policy, precision, profile, timeline
from trnlab.datasets.shards import INDEX
from trnlab.errors import TrnlabError
from trnlab.fabric import cluster, measured
from trnlab.fleet import quantities
from trnlab.fleet.costs import store as fleet_store
from trnlab.fleet.models import configurations
from trnlab.frontends.stablehlo import file as stablehlo_file
from trnlab.graph import parse as graph_parse
from trnlab.profile import vendor
from trnlab.program import parse as program_parse
from trnlab.runtime.cache import serialize
from trnlab.runtime.cache.executables import Cache
from trnlab.storage import open_store
from trnlab.storage.checkpoints import Checkpoints
from trnlab.storage.lease import Lease

Read = Callable[[bytes, Path], object]


@dataclass(frozen=True)
class Reader:
    """A kind of file. whole: sound ones. damage: of one. read: raises a TrnlabError for what it refuses; any other
    exception is a failure. often: how many of the inputs it gets, relative to the others. classes: those of a pickle,
    by module and name, that the kind is made of."""

    name: str
    whole: Callable[[], list[bytes]]
    damage: mutate.Damage
    read: Read
    often: float = 1.0
    classes: Callable[[str, str], bool] = lambda module, name: False


def as_file(name: str, read: Callable[[Path], object]) -> Read:
    """A reader of paths, given bytes."""

    def from_bytes(data: bytes, folder: Path) -> object:
        path = folder / name
        path.write_bytes(data)
        return read(path)

    return from_bytes


def as_text(read: Callable[[str], object]) -> Read:
    """A reader of text, given bytes; what is no UTF-8 is replaced, as it is read elsewhere."""
    return lambda data, folder: read(data.decode(errors="replace"))


# -- runs ------------------------------------------------------------------------------------------
def _in_run(where: str) -> tuple[Callable[[], list[bytes]], Read]:
    """A file of a run's folder: shown, rendered and compared; markup in it may not reach the pages as markup."""

    def read(data: bytes, folder: Path) -> None:
        run = sound.twin(folder)
        path = sorted(run.glob(where))[0]
        whole = path.read_bytes()
        try:
            path.write_bytes(data)
            _look_at(run)
        finally:
            path.write_bytes(whole)

    return lambda: [sorted(sound.run().glob(where))[0].read_bytes()], read


def _look_at(run: Path) -> None:
    try:
        profile.render(run)
        profile.show(run)
        documents.text(
            profile.comparison.document(profile.compare(profile.open_run(run), profile.open_run(sound.run())))
        )
    finally:
        for page in run.glob("*.html"):
            no_markup(page.read_text())


class _Markup(HTMLParser):
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if mutate.MARK in tag or any(mutate.MARK in name for name, _ in attrs):
            raise BrokenError(f"markup of a name became an element of the page: {tag}")

    handle_startendtag = handle_starttag


def no_markup(page: str) -> None:
    """Raises BrokenError where what came from a file is an element or an attribute of the page."""
    if mutate.MARK in page:
        _Markup(convert_charrefs=True).feed(page)


def _timeline_header(data: bytes, pick: random.Random) -> bytes:
    """Of a timeline, the bytes, or the tree of its header."""
    if pick.random() < 0.4:
        return mutate.in_bytes(data, pick)
    (length,) = struct.unpack_from("<Q", data, 8)
    text = mutate.dumped(mutate.in_tree(json.loads(data[16 : 16 + length]), pick))
    return data[:8] + struct.pack("<Q", len(text)) + text + data[16 + length :]


def _timeline_columns(data: bytes, pick: random.Random) -> bytes:
    """Values of a column, with a checksum that fits."""
    whole = timeline.from_bytes(data)
    name = pick.choice(list(whole.columns()))
    column = getattr(whole, name).copy()
    least, most = np.iinfo(column.dtype).min, np.iinfo(column.dtype).max
    for _ in range(pick.randint(1, 3)):
        column[pick.randrange(len(column))] = pick.choice((least, most, -1, 0, 1, len(column), pick.randint(0, 100)))
    changed = copy.copy(whole)
    object.__setattr__(changed, name, column)
    return changed.to_bytes()


# -- cache entries ------------------------------------------------------------------------------------------
def _entry(data: bytes, pick: random.Random) -> bytes:
    """An entry of the cache: bytes, or its header or program with digests that fit."""
    if pick.random() < 0.3:
        return mutate.in_bytes(data, pick)
    size = serialize._PREFIX.size
    magic, version, length, _ = serialize._PREFIX.unpack(data[:size])
    header, body = json.loads(data[size : size + length]), data[size + length :]
    split = header["program_bytes"]
    kind = pick.randrange(3)
    if kind == 0:
        header = mutate.in_tree(header, pick)
    elif kind == 1:
        program = mutate.dumped(mutate.in_tree(json.loads(body[:split]), pick))
        body = program + body[split:]
        header["program_bytes"] = len(program)
    else:
        header["arrays"] = mutate.in_tree(header["arrays"], pick)
    if kind and isinstance(header, dict):
        header |= {"body_bytes": len(body), "body_sha256": hashlib.sha256(body).hexdigest()}
    text = mutate.dumped(header)
    return serialize._PREFIX.pack(magic, version, len(text), hashlib.sha256(text).digest()) + text + body


def _from_cache(data: bytes, folder: Path) -> object:
    """Read as a run does, which never fails; and by the commands, which may refuse."""
    cache, key = Cache(folder / "cache", lambda line: None), "0" * 64
    cache.overwrite(key, data)
    cache.get(key)
    cache.entries()
    serialize.loads_metadata(data, "entry")
    return serialize.loads(data, "entry")


# -- checkpoints ------------------------------------------------------------------------------------------
def _checkpoint(where: str) -> tuple[Callable[[], list[bytes]], Read]:
    def read(data: bytes, folder: Path) -> object:
        place = folder / "checkpoints"
        store = open_store(place)
        if not place.exists():
            Checkpoints(store).save(7, {"state": b"0123456789"})
        path = place / where
        whole = path.read_bytes()
        try:
            path.write_bytes(data)
            Checkpoints(store).all()
            return Checkpoints(store).load_newest()
        finally:
            path.write_bytes(whole)

    def whole() -> list[bytes]:
        return [sound.checkpoint()[where]]

    return whole, read


def _lease(data: bytes, folder: Path) -> None:
    """A lease that somebody else holds: a waiter looks at it, and never fails."""
    store = open_store(folder / "leases")
    store.write("key/1", data)
    lease = Lease(store, "key")
    lease.try_acquire()
    lease.release()


def _kept_costs(data: bytes, folder: Path) -> None:
    """The planner's store: what is damaged there is found out anew."""
    target = chips.target("trn1.2xlarge")
    empty = fleet_store.opened(folder, target, "bf16")
    assert empty.file is not None
    empty.file.write_bytes(data)
    fleet_store.opened(folder, target, "bf16")


# -- front ends ------------------------------------------------------------------------------------------
def _module(data: bytes, folder: Path) -> object:
    """A module of StableHLO, as `trnlab run FILE.mlir` reads it, up to its graph."""
    from trnlab.frontends.stablehlo import import_module

    path = folder / "module.mlir"
    path.write_bytes(data)
    return import_module(stablehlo_file.read(path), "module")


def _weights(data: bytes, folder: Path) -> object:
    from trnlab.frontends.torch.saving import state_files

    return state_files.from_bytes(data)


@cache
def all_readers() -> tuple[Reader, ...]:
    """Every reader."""
    text, in_json, in_bytes = mutate.in_text, mutate.in_json, mutate.in_bytes
    summary, details, times = (_in_run(w) for w in ("summary.json", "details/*.json", "timelines/*.trntime"))
    record, done = (_checkpoint(w) for w in ("step_00000007/rank_00000.json", "step_00000007/done"))
    newest = _checkpoint("newest")
    return (
        Reader("cache entry", sound.entries, _entry, _from_cache, 3),
        Reader("summary of a run", summary[0], in_json, summary[1]),
        Reader("details of a run", details[0], in_json, details[1]),
        Reader("timeline", times[0], _timeline_header, as_file("t.trntime", timeline.load), 4),
        Reader("timeline in a run", times[0], _timeline_columns, times[1]),
        Reader("program", sound.programs, text, as_text(program_parse.parse_program), 2),
        Reader("routine", sound.routines, text, as_text(program_parse.parse_routine), 2),
        Reader("graph", sound.graphs, text, as_text(graph_parse.parse), 4),
        Reader("profile of the vendor", sound.vendor, in_json, as_file("v.json", _measured), 3),
        Reader("nccom-test report", sound.nccom, in_json, as_file("n.json", measured.read), 4),
        Reader("nccom-test table", sound.nccom_table, text, as_file("n.txt", measured.read), 4),
        Reader("model in JSON", sound.configs, in_json, as_file("config.json", _model), 4),
        Reader("model in YAML", sound.yamls, text, as_file("model.yaml", _model), 2),
        Reader("rules of precision", sound.rules, text, as_file("rules.toml", precision.read), 4),
        Reader("chip", sound.chips, text, as_text(chips.from_toml), 1),
        Reader("policy", sound.policies, text, as_text(policy.parse), 4),
        Reader("cluster", sound.clusters, text, as_text(cluster.parse), 4),
        Reader("amounts", sound.amounts, text, as_text(_amounts), 4),
        Reader("checkpoint's record", record[0], in_json, record[1], 2),
        Reader("checkpoint's marker", done[0], in_json, done[1], 2),
        Reader("checkpoint's newest", newest[0], in_bytes, newest[1], 2),
        Reader("lease", sound.leases, in_json, _lease, 2),
        Reader("costs of a planner", sound.costs, in_json, _kept_costs, 2),
        Reader("StableHLO", sound.modules, text, _module, 1),
        Reader("state of a training", sound.weights, in_bytes, _weights, 1),
        *_tables(),
        Reader("data set's index", lambda: [weights.data_set()[INDEX]], in_json, weights.read_index, 2),
        Reader("data set's array", weights.arrays, in_bytes, weights.read_array, 2),
        Reader("report that is kept", weights.reports, in_json, weights.read_report, 2),
    )


def _tables() -> tuple[Reader, ...]:
    """Checkpoints of others."""
    index, tensors = ".metadata", "__0_0.distcp"
    one, many = "model.safetensors", "model.safetensors.index.json"
    return (
        Reader("safetensors", weights.safetensors, weights.in_header, partial(weights.read_safetensors, one)),
        Reader(
            "safetensors' index", weights.safetensors_index, mutate.in_json, partial(weights.read_safetensors, many)
        ),
        Reader(
            "DCP index",
            lambda: [weights.dcp()[index]],
            mutate.in_bytes,
            partial(weights.read_dcp, index),
            classes=weights.is_of_dcp,
        ),
        Reader(
            "DCP tensors",
            lambda: [weights.dcp()[tensors]],
            mutate.in_bytes,
            partial(weights.read_dcp, tensors),
            classes=weights.is_of_dcp,
        ),
        Reader("vendor's checkpoint", weights.vendor, mutate.in_bytes, weights.read_vendor),
    )


def _measured(path: Path) -> None:
    """As `trnlab profile FILE` reads it, and shows it."""
    try:
        vendor.read(path)
        profile.show_measured(path)
    finally:
        page = path.with_suffix(".html")
        if page.exists():
            no_markup(page.read_text())
            page.unlink()


def _model(path: Path) -> object:
    found = configurations.model(str(path))
    return found.parameters


def _amounts(text: str) -> None:
    """As any of the options that take an amount."""
    kinds = (quantities.TOKENS, quantities.COUNT, quantities.TIME, quantities.POWER, quantities.MONEY)
    readings: list[Callable[[], object]] = [lambda k=kind: quantities.parse(text, k, "--option") for kind in kinds]
    refused = []
    for reading in (*readings, lambda: quantities.parse_range(text, "--option")):
        try:
            reading()
        except TrnlabError as error:
            refused.append(error)
    if len(refused) == len(readings) + 1:
        raise refused[0]
