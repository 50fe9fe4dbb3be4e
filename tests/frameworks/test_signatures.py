"""What users call says what it takes: options by name, with types and defaults, the same ones wherever they are passed on."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from inspect import Parameter, signature
from typing import Any

import pytest

import dfc.client
import dfc.inputs
from dfc.inputs import gopen, loader, numpy, tensorflow
from dfc.inputs.gopen import sharditerator, sharditerator_once
from dfc.inputs.loader import Loader, LoaderOptions
from dfc.inputs.mixing import Mixture
from dfc.inputs.torch import DataLoader, ShardDataset, dataset

# What takes keywords that nobody can list, and why.
OPEN = {
    "dfc.client.jobs.job_spec": "the options are those of the operation, which the cluster knows",
    "dfc.inputs.base.Counts.add": "names of counters",
    "dfc.inputs.filters.stages.Filter.__init__": "passed on to the function that is given",
    "dfc.inputs.filters.stages.map": "keywords are names of fields",
    "dfc.inputs.filters.samples.rename": "keywords are names of fields",
    "dfc.inputs.filters.samples.copy": "keywords are names of fields",
    "dfc.inputs.filters.samples.grep": "keywords are names of fields",
    "dfc.inputs.filters.samples.select": "keywords are names of fields",
    "dfc.inputs.filters.samples.check": "keywords are names of fields",
}
# The signatures are those of fsspec, whose callers pass on what they were given.
FSSPEC = ("dfc.inputs.filesystem.", "dfc.inputs.fsreads.")


def public_modules() -> Iterator[Any]:
    yield dfc.client
    for found in pkgutil.iter_modules(dfc.inputs.__path__, "dfc.inputs."):
        public_package = found.name in ("dfc.inputs.filters", "dfc.inputs.torch")
        if public_package or not found.ispkg:
            yield importlib.import_module(found.name)


def callables() -> dict[str, Callable[..., Any]]:
    """Every function, constructor and method of ours that a public module has, by its full name."""
    return {f"{function.__module__}.{function.__qualname__}": function for function in _callables()}


def _callables() -> Iterator[Callable[..., Any]]:
    for module in public_modules():
        for name in getattr(module, "__all__", None) or vars(module):
            found = getattr(module, name)
            if name.startswith("_") or not (getattr(found, "__module__", None) or "").startswith("dfc."):
                continue
            if not hasattr(module, "__all__") and found.__module__ != module.__name__:
                continue  # merely used there
            if inspect.isclass(found):
                for member in (*(name for name in dir(found) if not name.startswith("_")), "__init__", "__call__"):
                    function = inspect.getattr_static(found, member, None)
                    if inspect.isfunction(function) and function.__module__.startswith("dfc."):
                        yield function
            elif inspect.isfunction(found):
                yield found


def test_options_are_spelt_out() -> None:
    found = callables()
    hidden = set()
    for name, function in found.items():
        for parameter in signature(function).parameters.values():
            # `*args: P.args` and `**kwargs: P.kwargs` are those of another function, checked as such.
            open_ended = {Parameter.VAR_KEYWORD: "P.kwargs", Parameter.VAR_POSITIONAL: "P.args"}.get(parameter.kind)
            if open_ended not in (None, parameter.annotation) and (open_ended == "P.kwargs" or parameter.annotation == "Any"):
                hidden.add(name)
    assert len(found) > 200
    assert {name for name in hidden if not name.startswith(FSSPEC)} == OPEN.keys()


def test_all_of_it_has_types_and_functions_say_what_they_do() -> None:
    for name, function in callables().items():
        found = signature(function)
        for parameter in found.parameters.values():
            assert parameter.name == "self" or parameter.annotation is not Parameter.empty, f"{name}({parameter.name})"
        assert found.return_annotation is not Parameter.empty, name
        assert function.__doc__ or "." in function.__qualname__, name


OPTIONS = {
    name: parameter for name, parameter in signature(Loader).parameters.items() if parameter.kind is Parameter.KEYWORD_ONLY
}


@pytest.mark.parametrize(
    ("function", "without"), [(ShardDataset, {"rank", "ranks"}), (numpy.Loader, set()), (tensorflow.dataset, set())]
)
def test_options_of_loaders_are_those_of_the_one_that_they_are_passed_to(function: Any, without: set[str]) -> None:
    """Names, order, types and defaults."""
    wanted = [str(parameter) for name, parameter in OPTIONS.items() if name not in without]
    assert len(wanted) >= 15
    given = [str(parameter) for name, parameter in signature(function).parameters.items() if name in OPTIONS.keys() - without]
    assert given == wanted
    for name in ("shards", "batch_size"):
        assert signature(function).parameters[name].default == signature(Loader).parameters[name].default


def test_what_is_passed_on_has_the_types_of_the_loader() -> None:
    kept = {name: parameter.annotation for name, parameter in OPTIONS.items() if name not in ("rank", "ranks")}
    assert {name: kind.__forward_arg__ for name, kind in LoaderOptions.__annotations__.items()} == kept


def test_an_option_that_there_is_not_is_refused() -> None:
    for given in ("a", object.__new__(Loader)):
        for function in (ShardDataset, numpy.Loader, tensorflow.dataset):
            if given == "a" or function is not numpy.Loader:
                with pytest.raises(TypeError, match="unexpected keyword argument 'shufle'"):
                    function(given, shufle=True)


class Taken(Exception):
    """Instead of opening shards."""


@pytest.mark.parametrize(
    ("module", "function", "fixed"),
    [(dataset, ShardDataset, {"rank": 1, "ranks": 2}), (loader, numpy.Loader, {}), (tensorflow, tensorflow.dataset, {})],
)
def test_every_option_arrives(monkeypatch: pytest.MonkeyPatch, module: Any, function: Any, fixed: dict[str, Any]) -> None:
    taken: dict[str, Any] = {}

    def take(self: Any, shards: Any, batch_size: Any, **given: Any) -> None:
        taken.update(given, shards=shards, batch_size=batch_size)
        raise Taken

    monkeypatch.setattr(Loader, "__init__", take)
    options = {"shards": "a", "batch_size": 3, **{name: object() for name in OPTIONS}, **fixed}
    with pytest.raises(Taken):
        function(**options)
    assert taken == options


def test_options_beside_a_loader_that_has_its_own_are_refused(tmp_path: Any) -> None:
    """Any of them, unless it is as it is by default."""

    class Source:
        counts = dataset.Counts()

    for function, source in ((ShardDataset, Source()), (tensorflow.dataset, object.__new__(Loader))):
        for name in OPTIONS.keys() - {"rank", "ranks"}:
            with pytest.raises(ValueError, match="already has its options"):
                function(source, **{name: object()})
        with pytest.raises(ValueError, match="already has its options"):
            function(source, batch_size=1)
    defaults = {name: parameter.default for name, parameter in OPTIONS.items()}
    assert loader.options_given(defaults) == []
    assert set(loader.options_given({**defaults, "seed": 1, "fields": ["a"]})) == {"fields", "seed"}


def test_one_epoch_takes_what_many_take() -> None:
    one, many = signature(sharditerator_once).parameters, signature(sharditerator).parameters
    assert one.keys() == many.keys()
    for name in one:
        assert one[name].annotation == many[name].annotation, name
        if name not in ("epochs", "shuffle"):
            assert one[name].default == many[name].default, name


def test_one_epoch_passes_all_on(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {name: object() for name in signature(sharditerator_once).parameters}
    monkeypatch.setattr(gopen, "sharditerator", lambda *args, **named: signature(sharditerator).bind(*args, **named))
    assert dict(sharditerator_once(**given).arguments) == given  # type: ignore[arg-type, attr-defined]


def test_options_of_torchs_data_loader_are_all_there() -> None:
    """A new one of torch's shows up here. Defaults are torch's, but for what makes batches."""
    import torch.utils.data

    theirs, ours = signature(torch.utils.data.DataLoader).parameters, signature(DataLoader).parameters
    assert theirs.keys() <= ours.keys()
    assert ours.keys() - theirs.keys() == {"reuse_memory"}
    different = {name for name in theirs if theirs[name].default != ours[name].default}
    assert different == {"batch_size"}


def test_a_mixture_has_the_options_of_a_loader_that_are_left_to_it() -> None:
    mine = signature(Mixture).parameters
    shared = mine.keys() & OPTIONS.keys()
    assert shared == {"rank", "ranks", "seed", "equal", "collate", "handler", "maxerrs"}
    for name in shared:
        assert str(mine[name]) == str(OPTIONS[name])
