"""Programs to copy: those that read a dataset, and those that submit a job.

Names are percent-encoded in URLs and quoted in Python and for shells, whatever is in them. The token is never in a text, only
the name of the variable that holds it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from dfc.http.exchange import Exchange
from dfc.http.faces import is_by_tls
from dfc.jobs.spec import JobSpec
from dfc.listing.datasets import SPEC_RUNS_MAX, DatasetShards, braces
from dfc.ui import words
from dfc.ui.datasetfacts import FieldFacts
from dfc.ui.words import escaped, text_or_json, visible

BATCH: Final = 32
FIELDS_MAX: Final = 8
DEFAULT_BASE: Final = "http://127.0.0.1:8080"
DFC_DEFAULTS: Final = (DEFAULT_BASE, "http://localhost:8080")  # what `dfc` asks if it is told nothing
LABELS: Final = ("cls", "cls2", "class", "label", "id")
NAMED_MAX: Final = 16  # shards that `dfc get` is given one by one
_SPECIAL: Final = frozenset("{}[]*?@")
_USABLE: Final = re.compile(r"(?!__)[^;\s\x00-\x1f\x7f]+")  # WebDataset reads the others as several, or not at all
_SAFE: Final = "/-._~"
_TOKEN: Final = '-H "Authorization: Bearer $DFC_TOKEN"'
_AUTHORIZATION: Final = f"{_TOKEN} "


class Snippet(NamedTuple):
    """A text to copy, and what it is for."""

    title: str
    text: str


class ShardUrls(NamedTuple):
    """The URLs of shards: `before`, a number in one of `runs`, `after`, percent-encoded; without runs there is one shard. The
    numbers have `width` digits. `gaps`: how many numbers in the runs are not there."""

    base: str
    bucket: str
    before: str
    runs: Sequence[tuple[int, int]]
    width: int
    after: str
    gaps: int = 0

    @classmethod
    def of_shard(cls, base: str, bucket: str, name: str) -> ShardUrls:
        """Those of a single shard."""
        return cls(base, bucket, quote(name, safe=_SAFE), (), 0, "")

    @classmethod
    def of_dataset(cls, base: str, bucket: str, shards: DatasetShards) -> ShardUrls:
        """Those of a dataset that is not empty."""
        names = shards.names
        if names is None or len(shards) == 1:
            return cls.of_shard(base, bucket, shards.name(0))
        runs, gaps = list(shards.runs()), 0
        if len(runs) > SPEC_RUNS_MAX:
            gaps = runs[-1][1] - runs[0][0] + 1 - len(shards)
            runs = [(runs[0][0], runs[-1][1])]
        return cls(base, bucket, quote(names.before, safe=_SAFE), runs, names.width, quote(names.after, safe=_SAFE), gaps)

    def _around(self, numbers: str) -> str:
        return f"{self.base}/{self.bucket}/{self.before}{numbers}{self.after}"

    @property
    def pattern(self) -> str:
        """One URL with braces, as bash, WebDataset and DFC expand them."""
        return self._around(braces(self.runs, self.width) if self.runs else "")

    @property
    def ranges(self) -> list[str]:
        """URLs with ranges as curl expands them."""
        numbers = [[f"{number:0{self.width}d}" for number in sorted(set(run))] for run in self.runs]
        return [self._around(each[0] if len(each) == 1 else f"[{'-'.join(each)}]") for each in numbers or [[""]]]

    @property
    def listed(self) -> str:
        """What DFC reads: the pattern, or if numbers in it are not there, a wildcard that is looked up in a listing."""
        return self._around("*") if self.gaps and not self.is_odd else self.pattern

    @property
    def is_odd(self) -> bool:
        """Whether the names themselves have characters that mean something in a pattern."""
        return not _SPECIAL.isdisjoint(unquote(self.before + self.after))

    @property
    def each(self) -> Iterator[str]:
        """The URLs of all shards; with gaps, also of some that are not there."""
        if not self.runs:
            yield self._around("")
        for first, last in self.runs:
            for number in range(first, last + 1):
                yield self._around(f"{number:0{self.width}d}")


def asked_url(exchange: Exchange) -> str:
    """The URL of this node as the browser has it: the host that it asked for, once it is checked."""
    if exchange.authority is None:
        return DEFAULT_BASE
    return f"{'https' if is_by_tls(exchange) else 'http'}://{exchange.authority}"


def command_line(line: str, url: str, *, writes_want_token: bool, reads_want_token: bool) -> str:
    """A line for a shell as it is right here: `$DFC_URL` is the URL of this node, as `asked_url` returns it, and the token is
    sent where it is wanted. `line` has a token if it changes something."""
    if line.startswith("curl "):
        if not writes_want_token:
            line = line.replace(f" {_TOKEN}", "")
        elif reads_want_token and "$DFC_TOKEN" not in line:
            line += f" {_TOKEN}"
    elif line.startswith("dfc ") and url not in DFC_DEFAULTS:
        line = f"DFC_URL={url} {line}"
    return line.replace("$DFC_URL", url)


def chosen_fields(fields: Sequence[FieldFacts], samples: int) -> list[list[FieldFacts]]:
    """Choose the fields that a program reads, of those that all `samples` have; several in one entry are alternatives: a
    picture and a label, if there are such, else all."""
    usable = [field for field in fields if _USABLE.fullmatch(field.ext) and not field.is_pickle]
    common = [field for field in usable if field.samples == samples]
    pictures = [field for field in usable if field.kind == "picture"]
    picture = [field for field in common if field.kind == "picture"][:1]
    if not picture and pictures and sum(field.samples for field in pictures) >= samples:
        picture = pictures[:FIELDS_MAX]
    label = next((field for name in LABELS for field in common if field.last == name), None)
    if picture and label is not None:
        return [picture, [label]]
    rest = [[field] for field in common if field not in picture]
    return ([picture, *rest] if picture else rest)[:FIELDS_MAX]


def snippets(
    urls: ShardUrls, fields: Sequence[FieldFacts], looked_at: int, samples: int, *, wants_token: bool
) -> list[Snippet]:
    """Make all snippets. `fields` are those of `looked_at` samples, of `samples` in all. `wants_token`: reading needs it."""
    chosen = chosen_fields(fields, looked_at)
    size = max(1, min(BATCH, samples))
    return [
        Snippet("WebDataset", _webdataset(urls, fields, chosen, wants_token=wants_token)),
        Snippet("PyTorch", _pytorch(urls, chosen, size, wants_token=wants_token)),
        Snippet("TensorFlow", _tensorflow(urls, chosen, wants_token=wants_token)),
        Snippet("curl", _curl(urls, wants_token=wants_token)),
        Snippet("dfc get", _dfc_get(urls)),
    ]


def literal(value: object) -> str:
    """Write a value in Python, without characters that a page would have to make visible."""
    text = repr(value)
    return text if words.visible(text) == text else ascii(value)


def _names(chosen: Iterable[list[FieldFacts]]) -> list[str]:
    return [";".join(field.ext for field in each) for each in chosen]


def _has_pictures(chosen: Iterable[list[FieldFacts]]) -> bool:
    return any(field.kind == "picture" for each in chosen for field in each)


def _webdataset(urls: ShardUrls, fields: Sequence[FieldFacts], chosen: list[list[FieldFacts]], *, wants_token: bool) -> str:
    lines = ["import webdataset", ""]
    url = urls.pattern
    if urls.gaps:
        lines.append(f"# {urls.gaps} numbers in this pattern are not there: those shards are skipped with a warning.")
    if wants_token:
        lines.append("# The token is in the environment: DFC_TOKEN.")
        url = f"pipe:curl -fsSL {_AUTHORIZATION}{shlex.quote(url)}"
    lines.append(f"url = {literal(url)}")
    given = "url"
    if "::" in url:  # of an address; WebDataset takes it for the end of a URL
        lines.insert(0, "from braceexpand import braceexpand")
        given = "list(braceexpand(url))"
    handler = ", handler=webdataset.warn_and_continue" if urls.gaps else ""
    lines.append(f"dataset = webdataset.WebDataset({given}, shardshuffle=False{handler})")
    spec = ['"pil"'] if _has_pictures(chosen) else []
    read = [field for each in chosen for field in each]
    if any(field.is_plain for field in read) or any(field.is_pickle for field in fields):
        spec.append(f"only={literal([field.ext for field in read if not field.is_plain])}")
    lines.append(f"dataset = dataset.decode({', '.join(spec)})")
    if not chosen:
        return "\n".join([*lines, "for sample in dataset:", '    print(sample["__key__"])', ""])
    lines.append(f"dataset = dataset.to_tuple({', '.join(map(literal, _names(chosen)))})")
    return "\n".join([*lines, "for sample in dataset:", "    print(*map(type, sample))", ""])


def _decode(chosen: list[list[FieldFacts]], pictures: str) -> str:
    """The option `decode` of DFC's loaders."""
    plain = [field.ext for each in chosen for field in each if field.is_plain]
    form: str | bool = pictures if _has_pictures(chosen) else True
    return literal({**dict.fromkeys(plain, False), "*": form} if plain else form)


def _options(urls: ShardUrls, *, wants_token: bool) -> tuple[list[str], str]:
    """Lines to import, and the argument, for the token."""
    if not wants_token:
        return [], ""
    lines = ["from dfc.inputs.sources.streams import StreamOptions"]
    return lines, f", options=StreamOptions(cluster={literal(urls.base)})"


def _token_lines(*, wants_token: bool) -> list[str]:
    return ["# The token is in the environment: DFC_TOKEN."] if wants_token else []


def _pytorch(urls: ShardUrls, chosen: list[list[FieldFacts]], size: int, *, wants_token: bool) -> str:
    imports, options = _options(urls, wants_token=wants_token)
    # Samples with different fields make no batch.
    fields = f", fields={literal(_names(chosen))}" if chosen else ", collate=list"
    return "\n".join(
        [
            *imports,
            "from dfc.inputs.torch import DataLoader, ShardDataset",
            "",
            *_token_lines(wants_token=wants_token),
            f"url = {literal(urls.listed)}",
            f"dataset = ShardDataset(url, {size}{fields}, decode={_decode(chosen, 'torchrgb8')}{options})",
            "loader = DataLoader(dataset, num_workers=2)",
            "for batch in loader:",
            "    print({name: type(values) for name, values in batch.items()})" if chosen else "    print(len(batch))",
            "",
        ]
    )


def _tensorflow(urls: ShardUrls, chosen: list[list[FieldFacts]], *, wants_token: bool) -> str:
    imports, options = _options(urls, wants_token=wants_token)
    # What becomes a dictionary, as JSON does, cannot be a tensor.
    tensors = [each for each in chosen if all(f.kind in ("picture", "array") or f.is_number or f.last == "txt" for f in each)]
    used = tensors or chosen
    decode = _decode(used, "rgb8") if tensors else "False"
    fields = f", fields={literal(_names(used))}" if used else ""
    columns = f", as_tuple={literal([each[0].ext for each in used])}" if used else ""
    return "\n".join(
        [
            *imports,
            "from dfc.inputs import tensorflow as inputs",
            "",
            *_token_lines(wants_token=wants_token),
            f"url = {literal(urls.listed)}",
            f"dataset = inputs.dataset(url{fields}{columns}, decode={decode}{options})",
            "for sample in dataset:  # pictures may differ in size: resize them, then batch()",
            "    print(sample)",
            "",
        ]
    )


def _curl(urls: ShardUrls, *, wants_token: bool) -> str:
    lines = [f"# {urls.gaps} of these numbers are not there."] if urls.gaps else []
    token = _AUTHORIZATION if wants_token else ""
    return "\n".join([*lines, *(f"curl -f {token}-O {shlex.quote(url)}" for url in urls.ranges), ""])


def _dfc_get(urls: ShardUrls) -> str:
    if not (urls.runs and urls.is_odd):
        return f"dfc get {shlex.quote(urls.listed)} ./\n"
    # A name that is there is taken as it is, whatever is in it.
    named = list(islice(urls.each, NAMED_MAX + 1))
    lines = [f"# The first {NAMED_MAX} shards."] if len(named) > NAMED_MAX else []
    return "\n".join([*lines, f"dfc get {' '.join(map(shlex.quote, named[:NAMED_MAX]))} ./", ""])


# --- The same job for those who do not use a browser: as JSON, and as lines for a shell. No I/O.
#
# Everything is quoted for the shell, and what cannot be seen is escaped in JSON, where it can be: what is copied from the page
# is what was entered.


@dataclass(frozen=True)
class SameJob:
    """A job as indented JSON, as a line for curl, and as a command."""

    json: str
    curl: str
    command: str


def same_job(spec: bytes) -> SameJob:
    """Write a job in all three ways. `spec` is a valid job without `dry_run`."""
    short = escaped(spec.decode())
    curl = f'curl -d {shlex.quote(short)} "$DFC_URL/v1/jobs" -H "Authorization: Bearer $DFC_TOKEN"'
    return SameJob(escaped(msgspec.json.format(spec, indent=2).decode()), curl, _command(spec, short))


def _command(spec: bytes, short: str) -> str:
    job = msgspec.json.decode(spec, type=JobSpec)
    options = msgspec.json.decode(bytes(job.options), type=dict[str, msgspec.Raw])
    words = [
        f"--operation={job.operation}",
        *(f"--input={each.bucket}/{text_or_json(each.shards)}" for each in job.inputs),
        f"--output={job.output.bucket}/{job.output.pattern}",
        *(f"--option={name}={escaped(bytes(value).decode())}" for name, value in options.items()),
        *(["--overwrite"] if job.overwrite else []),
        *([f"--label={job.label}"] if job.label else []),
    ]
    if any(visible(word) != word for word in words):  # there is no way to write it that all shells know
        return f"printf %s {shlex.quote(short)} | dfc job run -"
    return " \\\n  ".join(["dfc job run", *map(shlex.quote, words)])
