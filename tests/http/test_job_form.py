"""The form for jobs, as a browser without script uses it: it checks, runs, and says what is wrong at its field."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys

import pytest
from harness import wait_for

from dfc.client import Client
from dfc.jobs.operations import OPERATIONS
from dfc.limits import FORM_BYTES_MAX, JOB_SPEC_KEPT_BYTES

BUCKET = "form-b"
FORM = {
    "operation": "reshuffle",
    "bucket": BUCKET,
    "shards": "s-{0..2}.tar",
    "output_bucket": "form-out",
    "pattern": "r-%06d.tar",
}


@pytest.fixture(scope="module", autouse=True)
def shards(http, make_tar):
    for number in range(3):
        shard = make_tar([(f"{number}-{key}.txt", b"1") for key in range(5)])
        assert http.put(f"/{BUCKET}/s-{number}.tar", content=shard).status_code == 201


def post(http, **values):
    answer = http.post("/ui/jobs/new", data={**FORM, **values})
    assert "<h1>" in answer.text or answer.status_code == 303
    return answer


def field(page: str, name: str) -> str:
    """The tag of a field."""
    return re.search(rf"<(?:input|textarea|select) id=\"{re.escape(name)}\"[^>]*>", page)[0]


def said(page: str, name: str) -> str:
    """What is wrong with a field."""
    found = re.search(rf'<p class="wrong" id="{re.escape(name)}-wrong">(.*?)</p>', page, re.DOTALL)
    return "" if found is None else html.unescape(found[1])


def shown(page: str, place: str) -> str:
    """What is in a place to be copied from."""
    return html.unescape(re.search(rf'<pre tabindex="0" id="{place}">(.*?)</pre>', page, re.DOTALL)[1])


def test_every_operation_has_a_form_with_its_options(http):
    page = http.get("/ui/jobs/new?bucket=form-b&shards=s-*.tar").text
    links = [html.unescape(each) for each in re.findall(r'href="(/ui/jobs/new\?[^"]+)"', page)]
    assert [re.search(r"operation=(\w+)", each)[1] for each in links] == [*OPERATIONS]
    described = {each["name"]: each for each in http.get("/v1/operations").json()["operations"]}
    for name, link in zip(OPERATIONS, links, strict=True):
        answer = http.get(link)
        assert answer.status_code == 200
        assert 'value="form-b"' in field(answer.text, "bucket")
        assert 'value="s-*.tar"' in field(answer.text, "shards")
        for option, schema in described[name]["options"]["properties"].items():
            tag = field(answer.text, f"option.{option}")
            assert f'aria-describedby="option.{option}-about"' in tag
            assert html.escape(schema["description"]).replace("&#x27;", "&#39;").replace("&quot;", "&#34;") in answer.text
    assert "user_functions</code>, which is off here" in http.get("/ui/jobs/new?operation=map").text
    assert http.get("/ui/jobs/new?operation=no-such").status_code == 404
    assert http.get("/ui/jobs/new?other=1").status_code == 400


def test_buckets_and_datasets_are_proposed_with_counts(http):
    page = http.get(f"/ui/jobs/new?operation=keys&bucket={BUCKET}&shards=s-{{0..2}}.tar").text
    assert f'<option value="{BUCKET}">' in page
    assert re.search(r'<option value="s-\{0\.\.2\}\.tar" label="3 shards, 15 samples, [^"]*">', page)
    assert re.search(r'<p class="hint">3 shards, 15 samples, ', page)
    page = http.get("/ui/jobs/new?operation=keys&bucket=not-there").text
    assert "bucket &#39;not-there&#39; does not exist" in page
    # Without script: a button looks, and changes nothing that was entered.
    answer = post(http, do="look", label="mine", shards="", **{"option.seed": "7"})
    assert answer.status_code == 200
    assert ('value="mine"' in field(answer.text, "label"), 'value="7"' in field(answer.text, "option.seed")) == (True, True)
    assert '<option value="s-{0..2}.tar"' in answer.text


def test_a_check_stores_nothing_and_shows_the_plan_and_the_same_job(http, nodes, tmp_path):
    label = "it's <b>'; touch owned; '"
    answer = post(http, do="check", label=label, **{"option.seed": "7"})
    assert answer.status_code == 200
    assert "3 shards, 15 samples" in answer.text
    assert "Nothing has been stored" in answer.text
    assert http.get("/form-out/").status_code == 404
    assert [job for job in http.get("/v1/jobs").json()["jobs"] if job["label"] == label] == []
    assert '"seed": 7' in shown(answer.text, "as-json")

    # What is to be copied is what would run: both lines are run here, with the programs that they name.
    def run(line: str) -> str:
        environment = {
            "DFC_URL": nodes.proxy, "DFC_TOKEN": "none", "PATH": "/usr/bin:/bin",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }  # fmt: skip
        command = ["/bin/sh", "-c", line]
        ran = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False, timeout=120)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    with Client(nodes.proxy) as client:
        job = json.loads(run(shown(answer.text, "as-curl")))
        assert job["label"] == label
        assert client.jobs.wait(job["id"], timeout_s=120).state == "succeeded"
        command = shown(answer.text, "as-command")
        assert command.startswith("dfc job run ")
        assert "15 samples" in run(f"{sys.executable} -m {command} --overwrite")
        assert list(tmp_path.iterdir()) == []
        again, first = [each for each in client.jobs.list() if each.label == label]
        assert again.output == first.output
        assert client.jobs.spec(again.id) == {**client.jobs.spec(first.id), "overwrite": True}


def test_a_job_runs_and_again_opens_the_form_as_it_was(http, nodes):
    answer = post(http, do="run", output_bucket="form-run", label="again?", **{"option.seed": "3", "option.strategy": "spill"})
    assert answer.status_code == 303
    place = answer.headers["location"]
    job_id = place.removeprefix("/ui/jobs/")
    with Client(nodes.proxy) as client:
        assert client.jobs.wait(job_id, timeout_s=120).state == "succeeded"
    again = f"/ui/jobs/new?again={job_id}"
    assert f'href="{again}"' in http.get(place).text
    page = http.get(again).text
    for name, value in {**FORM, "output_bucket": "form-run", "label": "again?", "option.seed": "3"}.items():
        if name != "operation":
            assert f'value="{html.escape(value)}"' in field(page, name)
    assert re.search(r'<option value="spill" selected>', page)
    # Now the outputs are in the way, which is said where they are named.
    answer = post(http, do="run", output_bucket="form-run")
    assert answer.status_code == 409
    assert "r-000000.tar" in said(answer.text, "pattern")
    assert "tick “Replace objects with these names” to allow this" in said(answer.text, "pattern")
    assert http.get("/ui/jobs/new?again=00").status_code == 404


def ended(http, nodes, **values) -> str:
    """The page of a job that was run to its end."""
    answer = post(http, do="run", **values)
    assert answer.status_code == 303, answer.text
    with Client(nodes.proxy) as client:
        client.jobs.wait(answer.headers["location"].removeprefix("/ui/jobs/"), timeout_s=120, check=False)
    return html.unescape(http.get(answer.headers["location"]).text)


def test_a_job_says_what_it_reads_and_writes_with_which_options(http, nodes):
    page = ended(http, nodes, output_bucket="form-says", label="<i>mine", **{"option.seed": "11"})
    assert '<a href="/ui/dataset?bucket=form-b&shards=s-%7B0..2%7D.tar">form-b/s-{0..2}.tar</a>' in page
    assert "<dd>form-says/r-%06d.tar</dd>" in page
    assert "seed: 11" in page
    assert re.search(r"; took [0-9]+ s\.</p>", page)
    assert '<a href="/ui/dataset?bucket=form-says&shards=r-%7B000000..000002%7D.tar">' in page
    listed = html.unescape(http.get("/ui/jobs").text)
    assert "<td>form-b/s-{0..2}.tar → form-says/r-%06d.tar</td>" in listed
    assert re.search(r"<i>mine</a> <small>reshuffle</small>", listed)


def test_a_job_shows_what_its_report_has_found(http, nodes, make_tar):
    nasty = make_tar([("<b>.txt", b"1"), ("b.txt", b"1"), ("<b>.txt", b"1"), ("README", b"")])
    assert http.put("/form-torn/t.tar", content=nasty).status_code == 201
    torn = {"bucket": "form-torn", "shards": "t.tar", "output_bucket": "form-torn"}
    checked = post(http, do="check", operation="validate", **{**torn, "pattern": "v.json"})
    assert "1 member belongs to no sample: in form-torn/t.tar" in checked.text
    answer = post(http, do="run", operation="validate", **{**torn, "pattern": "v.json"})
    with Client(nodes.proxy) as client:
        assert client.jobs.wait(answer.headers["location"].removeprefix("/ui/jobs/"), timeout_s=120).state == "succeeded"
    page = http.get(answer.headers["location"]).text
    assert "<strong>1 problem (1 duplicate) in 1 shard with 3 samples</strong>" in page
    assert "<h3>1 duplicate</h3>" in page
    assert "sample &#39;&lt;b&gt;&#39;" in page
    assert "<b>" not in page
    assert '<a href="/form-torn/v.json" download>' in page
    assert '<a href="/ui/dataset?bucket=form-torn&amp;shards=t.tar">' in page
    # A job that would fail says so before, and what can be done: `stats` as well as those that begin with a check.
    for operation, pattern in (("reshuffle", "r-%03d.tar"), ("stats", "s.json")):
        checked = html.unescape(post(http, do="check", operation=operation, **{**torn, "pattern": pattern}).text)
        assert (
            "the job will fail: a sample has the key of an earlier one in form-torn/t.tar; set on_split to join or keep"
            in checked
        )
        assert "It can run; but see above" in checked
    # What its pattern matches and what is no shard is named.
    assert http.put("/form-torn/fake.tar", content=b"no tar " * 200).status_code == 201
    checked = html.unescape(post(http, do="check", operation="keys", **{**torn, "shards": "*.tar", "pattern": "k.txt"}).text)
    assert "<dd>1 shard, 3 samples" in checked
    assert "1 object is named like a shard, but cannot be read as one and will be skipped: form-torn/fake.tar" in checked
    failed = ended(http, nodes, operation="reshuffle", **{**torn, "pattern": "r-%03d.tar"})
    assert "occurs again later in the shard; set on_split to join or keep" in failed
    assert "stage check begins: 1 task" in failed
    counted = ended(http, nodes, operation="stats", **{**torn, "pattern": "s.json", "option.on_split": "keep"})
    assert "<dt>field txt</dt>" in counted
    # What is not there any more, or is something else by now, is not shown; the page is.
    assert http.put("/form-torn/v.json", content=b'{"counts": "<script>"}').status_code in (200, 201)
    assert "Its report cannot be shown" in http.get(answer.headers["location"]).text
    assert http.delete("/form-torn/v.json").status_code == 204
    assert "Its report cannot be shown" in http.get(answer.headers["location"]).text


def test_commands_end_with_what_was_found(nodes, http, make_tar, tmp_path):
    torn = make_tar([("a.txt", b"1"), ("b.txt", b"1"), ("a.txt", b"1")])
    assert http.put("/form-cli/t.tar", content=torn).status_code == 201
    environment = {"DFC_URL": nodes.proxy, "PATH": "/usr/bin:/bin", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "dfc", *words]
        ran = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False, timeout=120)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    found = run("validate", "form-cli/t.tar", "form-cli/v.json")
    assert found == "validate: 1 problem (1 duplicate) in 1 shard with 3 samples; the report is form-cli/v.json\n"
    repaired = run("validate", "form-cli/t.tar", "form-cli/clean/", "--repair").splitlines()
    assert repaired[0].endswith("; the report is form-cli/clean/report.json")
    assert repaired[1].startswith("validate: 2 objects, 2 samples, ")
    counted = run("stats", "form-cli/clean/t.tar", "form-cli/s.json", "--by", "txt")
    assert re.fullmatch(r"stats: 1 shard, 2 samples, [^;]+; 1 class by txt; the report is form-cli/s\.json\n", counted)
    assert run("keys", "form-cli/t.tar").count("\n") == 3


def test_a_job_whose_spec_is_gone_cannot_be_had_again(http, nodes):
    spec = b'{"operation": "keys", "input": {"bucket": "form-b"}, "output": {"bucket": "form-long", "pattern": "k.txt"}}'
    job = http.post("/v1/jobs", content=spec + b" " * JOB_SPEC_KEPT_BYTES).json()["id"]
    with Client(nodes.proxy) as client:
        assert client.jobs.wait(job, timeout_s=120).state == "succeeded"
    answers = []

    def is_gone() -> bool:  # its details are forgotten soon after its end
        answers.append(http.get(f"/ui/jobs/new?again={job}"))
        return answers[-1].status_code == 410

    wait_for(is_gone, "the spec to be dropped")
    assert f"/form-long/.dfc/jobs/{job}.json" in answers[-1].text
    assert {answer.status_code for answer in answers} <= {200, 410}


def test_mistakes_are_at_their_field_and_nothing_entered_is_lost(http):
    answer = post(http, do="check", label="kept", **{"option.seed": "-5", "option.shard_size": "<i>1 GB"})
    assert answer.status_code == 400
    assert "Expected `int` >= 0" in said(answer.text, "option.seed")
    tag = field(answer.text, "option.seed")
    assert 'aria-invalid="true" autofocus' in tag
    assert 'aria-describedby="option.seed-about option.seed-wrong"' in tag
    assert 'value="kept"' in field(answer.text, "label")
    assert 'value="&lt;i&gt;1 GB"' in field(answer.text, "option.shard_size")
    answer = post(http, do="run", bucket="", pattern="")
    assert answer.status_code == 400
    assert said(answer.text, "bucket") == "say which bucket to read"
    assert '<a href="#pattern">Names of the outputs</a>' in answer.text
    answer = post(http, do="check", operation="map", **{"option.args": "{"})
    assert answer.status_code == 400
    assert "this is not JSON" in said(answer.text, "option.args")
    answer = post(http, do="check", operation="map", **{"option.command": '["true"]'})
    assert answer.status_code == 403
    assert "jobs_user_commands" in re.search(r'role="alert">([^<]*)<', answer.text)[1]
    answer = post(http, do="check", shards="none-*")
    assert (answer.status_code, bool(said(answer.text, "shards"))) == (404, True)


def test_what_is_no_form_is_refused(http):
    assert post(http, do="fly").status_code == 400
    assert post(http, **{"option.no-such": "1"}).status_code == 400
    assert post(http, output_bucket="form-none", more="a/b").status_code == 200, (
        "the field is there for operations that take several"
    )
    assert http.post("/ui/jobs/new?operation=keys", data=FORM).status_code == 400
    assert http.post("/ui/jobs/new", json=FORM).status_code == 400
    assert http.post("/ui/jobs/new", data={**FORM, "label": "x" * FORM_BYTES_MAX}).status_code == 413
    assert http.post("/ui/jobs/new", data=FORM, headers={"Origin": "http://evil.example"}).status_code == 403
