"""The job that counts the classes and sizes of a dataset, as it is proposed. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from dfc.datasets import NumberedNames
from dfc.errors import DfcError
from dfc.jobs.pattern import OutputPattern
from dfc.ui.datasets.looking import FoundReport

CLASS_FIELD: Final = "cls"
ENDING: Final = "stats.json"


def counting(bucket: str, pattern: str, exts: Iterable[str], report: FoundReport | None) -> dict[str, str]:
    """The fields of the form for the job: its output beside the shards, which takes the place of the last `report` if that is
    called so, and the field with the class, if there is one."""
    name = report_for(pattern)
    found = {"output_bucket": bucket, **({"pattern": name} if name else {})}
    if CLASS_FIELD in exts:
        found["option.by"] = CLASS_FIELD
    if report is not None and (report.job.bucket, report.name) == (bucket, name):
        found["overwrite"] = "on"
    return found


def report_for(pattern: str) -> str:
    """The name of a report on a dataset: `a/train.stats.json` for `a/train-{000..146}.tar`. Empty if it would be none."""
    names = NumberedNames.of(pattern)
    folder, slash, base = (pattern if names is None else names.before).rpartition("/")
    stem = base.partition(".")[0] if names is None else base
    stem = stem.rstrip("-_.")
    name = f"{folder}{slash}{stem}{'.' if stem else ''}{ENDING}"
    with suppress(DfcError):
        made = OutputPattern(name)
        return "" if made.is_numbered or made.has_part else name
    return ""
