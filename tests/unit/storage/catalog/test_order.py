"""The order of uploads of one name: which one counts that began before what is there."""

from __future__ import annotations

from typing import Any

import pytest
from copying import body, written
from hypothesis import given
from hypothesis import strategies as st

from dfc.errors import Overtaken, PreconditionFailed
from dfc.storage import Precondition
from dfc.storage.catalog import cache
from dfc.storage.catalog.cache import Marks


def test_an_upload_that_a_conditional_write_overtook_is_refused(disk: Any, open_disk: Any) -> None:
    slow, deleted = (written(disk, name, b"s") for name in ("x", "y"))
    disk.put_small("b", "x", b"first", precondition=Precondition(if_none_match="*"))
    disk.put_small("b", "x", b"second")
    disk.put_small("b", "y", b"first")
    disk.delete("b", "y", precondition=Precondition(if_match="*"))
    for writer in (slow, deleted):
        with pytest.raises(Overtaken, match="try again") as caught:
            writer.commit()
        assert (caught.value.status, caught.value.code, caught.value.headers["Retry-After"]) == (503, "overtaken", "1")
    assert (body(disk, "x"), len(open_disk.files())) == (b"second", 1)
    disk.put_small("b", "x", b"again")
    assert body(disk, "x") == b"again"


def test_an_upload_that_plain_writes_overtook_counts_as_replaced(disk: Any) -> None:
    disk.put_small("b", "x", b"0", precondition=Precondition(if_none_match="*"))
    slow = written(disk, "x", b"s")
    disk.put_small("b", "x", b"1")
    disk.put_small("b", "other", b"1", precondition=Precondition(if_none_match="*"))
    with pytest.raises(PreconditionFailed):
        disk.put_small("b", "x", b"2", precondition=Precondition(if_none_match="*"))
    result = slow.commit()
    assert (result.replaced, result.committed) == (True, False)
    assert body(disk, "x") == b"1"


@given(st.lists(st.integers(0, 9), max_size=40))
def test_what_is_forgotten_of_conditional_writes_counts_for_all(writes: list[int]) -> None:
    class Empty:
        def execute(self, query: str) -> Any:
            return iter(()) if "JOIN" in query else type("Nothing", (), {"fetchone": lambda self: None})()

    kept, cache.CONDITIONAL_NAMES_MAX = cache.CONDITIONAL_NAMES_MAX, 3
    try:
        memory = Marks(Empty())  # type: ignore[arg-type]
        newest: dict[tuple[str, str], str] = {}
        for number, name in enumerate(writes):
            key, version = ("b", str(name)), f"{number:018x}"
            memory.note_conditional(key, version)
            newest[key] = version
            assert len(memory._conditional) <= 3
            for each, known in newest.items():
                assert memory.newest_conditional(each) >= known, "an upload that was overtaken would be taken"
            exact = [memory.newest_conditional(each) == known for each, known in newest.items()]
            assert sum(exact) >= min(3, len(newest))
    finally:
        cache.CONDITIONAL_NAMES_MAX = kept
