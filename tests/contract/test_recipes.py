"""The recipes of codegen/README.md for following the vendor, on a copy of the project.

After the first step of each, tests name the file and what to write there; after all of its steps,
the same tests pass. What is derived of a new operation is looked at in the copy, too.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import attrs
import pytest

pytest.importorskip("openapi_python_client", reason="codegen/requirements.txt is not installed")

from support.contract import ROOT
from support.copies import QUIET, ProjectCopy

pytestmark = pytest.mark.soak
FACTS = "tests/contract/official/0.38.0.json"
DOCUMENT = "tests/contract/test_document.py"
OFFICIAL = "tests/contract/test_official.py::test_the_document_has_all_of_the_official_sdk"
HANDLERS = "tests/local/test_server_contract.py::test_every_operation_has_a_handler"
HEADERS = "tests/contract/test_client.py::test_every_header_is_sent"
PROTO = "tests/codec/test_proto_fields.py"
CODEC = "tinker/_wire/proto.py"
MESSAGES = "tests/contract/test_official.py::test_every_message_is_the_official_one"
OFFICIAL_SURFACE = Path("tests", "compat", "surface", "official", "0.38.0.json")

#: A file, a text that stands there once, and what stands there from now on.
Edit = tuple[str, str, str]
PAGE = (ROOT / "codegen" / "README.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    """Return a section of codegen/README.md."""
    return PAGE.split(f"### {heading}\n", 1)[1].split("\n### ", 1)[0]


def yaml_of(heading: str) -> str:
    """Return the YAML that a section says to write, as it stands in the document."""
    (block,) = re.findall(r"```yaml\n(.*?)\n *```", section(heading), re.DOTALL)
    lines = block.splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip()) - 8
    return "".join(f"{line[indent:]}\n" for line in lines)


def after(name: str, anchor: str, text: str) -> Edit:
    return name, anchor, anchor + text


@attrs.frozen(kw_only=True)
class Recipe:
    """The steps of a recipe, and what is told on the way.

    ``first`` is the change of the contract. ``told`` is what each test then says, or mypy of a
    file. ``diff`` is what the comparison says. After ``rest``, none of them says anything, and
    ``script`` succeeds, whose ``operations`` are new ones.
    """

    first: tuple[Edit, ...]
    told: dict[str, str]
    diff: tuple[str, ...]
    rest: tuple[Edit, ...]
    script: str
    operations: tuple[str, ...] = ()


SERVED = """
import asyncio, inspect, json, tempfile
from pathlib import Path
import httpx
import tinker
from support.judge import Judge, Judging
from tinker.local import Settings, State, create_app
from tinker.local.engines.toy import ToyEngine

sent = []

class Recorder(httpx.ASGITransport):
    async def handle_async_request(self, request):
        sent.append(request)
        return await super().handle_async_request(request)

state, judge = State(ToyEngine, Settings(data_dir=Path(tempfile.mkdtemp()), api_key="tml-key")), Judge()
transport = Recorder(Judging(create_app(state), judge))
service = tinker.ServiceClient(base_url="http://server", api_key="tml-key", transport=transport)
prompt, params = tinker.ModelInput.from_ints([1, 2]), tinker.SamplingParams(max_tokens=2)
training = service.create_lora_training_client("tinker/toy")

def asked(operation):
    (request,) = [one for one in sent if one.url.path.endswith("/" + operation)]
    return request
"""
CLOSE = "service.close().result()\nstate.close()\nassert judge.faults == []\nprint('fits')\n"

NEW_PATH = """\
  /api/v1/reset_optimizer:
    post:
      operationId: reset_optimizer
      x-methods: [TrainingClient.reset_optimizer]
      tags: [training]
      externalDocs: {url: docs/sft.md}
      x-codeSamples: [{lang: Python, source: 'training.reset_optimizer().result()'}]
      summary: Forget the state of the optimizer.
      x-optional: true
      x-evidence: read
      x-result: {$ref: '#/components/schemas/ResetOptimizerResponse'}
      requestBody:
        required: true
        content:
          application/json:
            schema: {$ref: '#/components/schemas/ResetOptimizerRequest'}
            example: {model_id: run-1, seq_id: 1}
      responses:
        '200': {$ref: '#/components/responses/Future'}
        '404': {$ref: '#/components/responses/NotFound'}
        default: {$ref: '#/components/responses/Error'}

"""
NEW_SCHEMAS = """\
    ResetOptimizerRequest:
      description: Which optimizer to reset.
      type: object
      required: [model_id]
      properties:
        model_id: {type: string, description: 'The model, which is the training run.', examples: [run-1]}
        seq_id: {type: [integer, 'null'], format: int64, description: Its number among the requests of the model., examples: [1]}
    ResetOptimizerResponse:
      description: The optimizer has no state.
      type: object
      required: [steps_forgotten]
      properties:
        steps_forgotten: {type: integer, format: int64, description: How many steps it had taken., examples: [3]}
"""
NEW_HANDLER = '''

async def reset_optimizer(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Forget the state of the optimizer."""
    request = call.read(models.ResetOptimizerRequest)

    def run(engine: Engine) -> models.ResetOptimizerResponse:
        return models.ResetOptimizerResponse(steps_forgotten=0)

    with state.lock() as shared:
        model = shared.store.model(request.model_id)
        return common.enqueue_idempotent(state, call, model, model.queue.assign_number(request.seq_id), common.fingerprint(request), run)

'''
NEW_REQUEST = '''
def reset_optimizer() -> RunRequest[models.ResetOptimizerResponse]:
    """Describe a reset of the optimizer."""
    request = runs.reset_optimizer()
    return RunRequest("reset_optimizer", request, json_only(request.result))

'''
NEW_METHOD = '''
    def reset_optimizer(self) -> APIFuture[models.ResetOptimizerResponse]:
        """Forget the state of the optimizer."""
        return self._run.send(requests.reset_optimizer())
'''

#: Three operations with their schemas, as somebody would add them.
FAMILY = (ROOT / "tests" / "support" / "notes_family.yaml").read_text(encoding="utf-8")
PATHS, SCHEMAS = FAMILY.split("paths:\n")[1].split("schemas:\n", 1)
FAMILY_HANDLERS = '''

_NOTES: dict[str, list[models.Note]] = {}


def _notes_of(state: State, call: APICall) -> list[models.Note]:
    with state.lock() as shared:
        return _NOTES.setdefault(shared.store.session(call.path["session_id"]).session_id, [])


async def create_note(state: State, call: APICall) -> models.Note:
    """Keep a note."""
    text, notes = call.read(models.CreateNoteRequest).text, _notes_of(state, call)
    notes.append(models.Note(note_id=f"n{len(notes)}", text=text))
    return notes[-1]


async def list_notes(state: State, call: APICall) -> models.NotesResponse:
    """Return the notes."""
    return models.NotesResponse(notes=_notes_of(state, call))


async def delete_note(state: State, call: APICall) -> None:
    """Forget a note; 404 when it is not there."""
    notes = _notes_of(state, call)
    kept = [note for note in notes if note.note_id != call.path["note_id"]]
    if len(kept) == len(notes):
        raise APIProblem(404, "there is no such note")
    notes[:] = kept
'''
#: Tests in which every operation has its place, none of them written for one.
DERIVED = (
    "tests/contract/test_document.py",
    "tests/contract/test_client.py::test_every_request_fits",
    "tests/contract/test_client.py::test_every_answer_fits",
    "tests/contract/test_client.py::test_every_operation_is_asked",
    "tests/contract/test_evidence.py::test_every_operation_is_described",
    "tests/contract/test_official.py::test_the_document_has_all_of_the_official_sdk",
    "tests/local/test_profiles.py::test_the_json_core_has_the_basic_operations_only",
    "tests/local/test_server_contract.py",
    "tests/testing/test_conformance.py::test_every_operation_is_checked",
)
FUZZED = "tests/contract/test_server.py::test_every_operation"

NEW_HEADER = """\
    Priority:
      name: X-Tinker-Priority
      in: header
      description: How urgent the request is.
      x-evidence: read
      schema: {type: string}
"""
SAMPLER = "tinker/local/handlers/sampling.py"
ANCHOR = "      required: [prompt, sampling_params]\n      properties:\n"
#: In the facts of the newest release.
NEW_FACT = (
    '  "SampleResponse": {\n   "prompt_alt_tokens": [\n',
    (
        '  "SampleResponse": {\n   "queue_place": [7, "int32", "optional"],\n   '
        '"prompt_alt_tokens": [\n'
    ),
)

RECIPES = {
    "Adding a sampling option": Recipe(
        first=(after("openapi.yaml", ANCHOR, yaml_of("Adding a sampling option")),),
        told={
            OFFICIAL: (
                "under [additions] of codegen/official_differences.toml: "
                '"SampleRequest.min_prompt_logprob" = "WHY"'
            )
        },
        diff=("compatible: 1",),
        rest=(
            after(
                "codegen/official_differences.toml",
                "[additions]\n",
                '"SampleRequest.min_prompt_logprob" = "of a server"\n',
            ),
            after(
                "tinker/_sampling/__init__.py",
                "prompt_alt_tokens_k: int = 0\n",
                "    min_prompt_logprob: float | None = None\n",
            ),
            (
                "tinker/sampling_client.py",
                (
                    "        prompt_logprobs_last_n: int | None = None,\n    ) -> "
                    "APIFuture[SampleResponse]:\n"
                ),
                "        prompt_logprobs_last_n: int | None = None,\n        min_prompt_logprob: "
                "float | None = None,\n"
                "    ) -> APIFuture[SampleResponse]:\n",
            ),
            after(
                "tinker/_sampling/__init__.py",
                "            prompt_alt_tokens_k=self.prompt_alt_tokens_k,\n",
                "            min_prompt_logprob=self.min_prompt_logprob,\n",
            ),
            after(
                "tinker/sampling_client.py",
                "            prompt_alt_tokens_k=prompt_alt_tokens_k,\n",
                "            min_prompt_logprob=min_prompt_logprob,\n",
            ),
        ),
        script="""
sampler = training.save_weights_and_get_sampling_client()
sampler.sample(prompt, 1, params, min_prompt_logprob=-2.5).result()
assert json.loads(asked("asample").content)["min_prompt_logprob"] == -2.5
""",
    ),
    "Adding a REST operation": Recipe(
        first=(
            after("openapi.yaml", "\npaths:\n", PATHS),
            after("openapi.yaml", "\n  schemas:\n", textwrap.indent(SCHEMAS, "  ")),
        ),
        told={HANDLERS: "create_note"},
        diff=("compatible: 6",),
        rest=(
            (
                "tinker/local/handlers/service.py",
                "\n\nasync def healthz(",
                f"{FAMILY_HANDLERS}\n\nasync def healthz(",
            ),
        ),
        script="""
rest, session = service.create_rest_client(), training.result().model_id.partition(":")[0]
written = rest.create_note(session, "first").result()
asyncio.run(rest.create_note_async(session, text="second"))
rest.delete_note(session, written.note_id).result()
assert [note.text for note in asyncio.run(rest.list_notes_async(session)).notes] == ["second"]
assert isinstance(rest.delete_note(session, "n9").exception(), tinker.NotFoundError)
for name in ("create_note", "list_notes", "delete_note"):
    words = inspect.getdoc(getattr(tinker.RestClient, name))
    assert all(f"\\n{section}:\\n" in words for section in ("Args", "Returns", "Raises"))
    assert inspect.iscoroutinefunction(getattr(rest, f"{name}_async"))
    assert name in judge.succeeded
""",
        operations=("create_note", "list_notes", "delete_note"),
    ),
    "Adding an operation with a future result": Recipe(
        first=(
            after("openapi.yaml", "\npaths:\n", NEW_PATH),
            after("openapi.yaml", "\n  schemas:\n", NEW_SCHEMAS),
        ),
        told={
            HANDLERS: "reset_optimizer",
            f"{DOCUMENT}::test_every_result_of_a_future_is_listed": "reset_optimizer: write `- {$ref: "
            "'#/components/schemas/ResetOptimizerResponse'}` after line ",
        },
        diff=("compatible: 3",),
        rest=(
            after(
                "openapi.yaml",
                "              - {$ref: '#/components/schemas/UnloadModelResponse'}\n",
                "              - {$ref: '#/components/schemas/ResetOptimizerResponse'}\n",
            ),
            (
                "openapi.yaml",
                "Sample, CreateCustomLoss]",
                "Sample, CreateCustomLoss, ResetOptimizer]",
            ),
            (
                "tinker/local/handlers/training.py",
                "\n\nasync def unload_model",
                f"{NEW_HANDLER}\nasync def unload_model",
            ),
            (
                "tinker/_training/requests.py",
                "\n\ndef save_state(",
                f"\n{NEW_REQUEST}\ndef save_state(",
            ),
            after(
                "tinker/training_client.py",
                "requests.optim_step(check_optim_params(params)))\n",
                NEW_METHOD,
            ),
            after(
                "tinker/training_client.py",
                "    optim_step_async: Final = twin(optim_step)\n",
                "    reset_optimizer_async: Final = twin(reset_optimizer)\n",
            ),
        ),
        script="""
assert training.reset_optimizer().result().steps_forgotten == 0
assert json.loads(asked("reset_optimizer").content)["seq_id"] == 1
""",
    ),
    "Adding an enum value, or renaming a field": Recipe(
        first=(
            (
                "openapi.yaml",
                "enum: [active, paused_capacity, ",
                "enum: [active, paused_maintenance, paused_capacity, ",
            ),
            (
                "openapi.yaml",
                "model_path: {type: [string, 'null'], description: The checkpoint that it samples",
                (
                    "weights_path: {type: [string, 'null'], description: The "
                    "checkpoint that it samples"
                ),
            ),
        ),
        told={
            SAMPLER: (
                f'{SAMPLER}:LINE: error: Unexpected keyword argument "model_path" for '
                '"GetSamplerResponse"'
            )
        },
        diff=("servers: ", "python: "),
        rest=((SAMPLER, "model_path=sampler.model_path", "weights_path=sampler.model_path"),),
        script="""
from tinker_wire.models import QueueState
assert "paused_maintenance" in str(QueueState)
saved = training.save_weights_for_sampler("a").result()
sampler = service.create_sampling_client(model_path=saved.path)
sampler.sample(prompt, 1, params).result()
answer = service.create_rest_client().get_sampler(sampler.sampling_session_id).result()
assert answer.weights_path.startswith("tinker://")
""",
    ),
    "Adding a protobuf field": Recipe(
        first=(
            after(
                "tinker_public.proto",
                "  optional PromptAltTokens prompt_alt_tokens = 6;\n",
                "  int32 queue_place = 7;\n",
            ),
        ),
        told={
            f"{PROTO}::test_no_field_is_lost": "SampleResponse has no 'queue_place'",
            CODEC: f'{CODEC}:LINE: error: "SampleResponse" has no attribute "queue_place"',
            MESSAGES: "python -m codegen follow WHEEL --facts",
        },
        diff=("compatible: 1",),
        rest=(
            after(
                "tinker/types/results.py",
                "    prompt_alt_tokens: PromptAltTokens | None = None\n",
                "    queue_place: int = 0\n",
            ),
            after(f"{PROTO}", "        prompt_cache_hit_tokens=4,\n", "        queue_place=5,\n"),
            (FACTS, *NEW_FACT),
        ),
        script="""
from tinker._wire import proto
assert proto.decode_sample(b"\\x38\\x05").queue_place == 5
""",
    ),
    "Adding a header": Recipe(
        first=(
            after("openapi.yaml", "\n  parameters:\n", NEW_HEADER),
            after(
                "openapi.yaml",
                "      "
                "x-result: {$ref: '#/components/schemas/OptimStepResponse'}\n      parameters:\n",
                "        - {$ref: '#/components/parameters/Priority'}\n",
            ),
        ),
        told={
            HEADERS: (
                "X-Tinker-Priority: pass x_tinker_priority to the function "
                "of tinker_wire.api in tinker/"
            )
        },
        diff=("compatible: 1",),
        rest=(
            (
                "tinker/_training/requests.py",
                "request = runs.optim_step(",
                'request = runs.optim_step(x_tinker_priority="high", ',
            ),
        ),
        script="""
training.optim_step(tinker.AdamParams()).result()
assert asked("optim_step").headers["x-tinker-priority"] == "high"
""",
    ),
}


class Followed(ProjectCopy):
    """A copy of the project in which a recipe is followed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / OFFICIAL_SURFACE).parent.mkdir(parents=True)
        shutil.copy(ROOT / OFFICIAL_SURFACE, folder / OFFICIAL_SURFACE)

    def edit(self, edits: tuple[Edit, ...]) -> None:
        """Make the edits, then run the generator."""
        for name, old, new in edits:
            path = self.folder / name
            text = path.read_text(encoding="utf-8")
            assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
            self._write(path, text.replace(old, new))
        self.run_module("codegen", "generate")

    def ask(self, name: str) -> tuple[int, str]:
        """Run a test, or mypy of a file of the client."""
        if name.startswith("tests/"):
            return self.run_tests(name)
        command = [sys.executable, "-m", "mypy", "--follow-imports", "silent", name]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout


@pytest.mark.parametrize("heading", RECIPES)
def test_a_recipe_is_followed(heading: str, tmp_path: Path) -> None:
    """After the first step tests say what to write where; after the others all of it works."""
    recipe = RECIPES[heading]
    assert section(heading)
    copy = Followed(tmp_path)
    copy.edit(recipe.first)
    for name, words in recipe.told.items():
        status, said = copy.ask(name)
        assert status == 1
        assert words in re.sub(r":\d+: error", ":LINE: error", said), said[-3000:]
    compared = subprocess.run(
        [sys.executable, "-m", "codegen", "diff", str(ROOT), str(copy.folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert [words for words in recipe.diff if words not in compared.stdout] == [], compared.stdout
    copy.edit(recipe.rest)
    for name in recipe.told:
        status, said = copy.ask(name)
        assert status == 0, said[-3000:]
    assert copy.run(SERVED + recipe.script + CLOSE).splitlines()[-1] == "fits"
    if recipe.operations:
        are_derived(copy, recipe.operations)
    copy.close()


def are_derived(copy: Followed, operations: tuple[str, ...]) -> None:
    """The table has the operations, with a method and a handler, and tests try them."""
    table = (copy.folder / "docs" / "coverage.md").read_text(encoding="utf-8")
    for name in operations:
        (entry,) = [part for part in table.split("\n- ") if part.startswith(f"**`{name}`**")]
        assert f"`RestClient.{name}`" in entry
        assert entry.splitlines()[0].endswith(", served")
    chosen = ("-k", "notes or not test_server.py")
    words = copy.run_module("pytest", *QUIET, "-rp", FUZZED, *DERIVED, *chosen)
    assert len(re.findall(rf"^PASSED {FUZZED}\b", words, re.MULTILINE)) == len(operations)


def test_reference_pages_show_inherited_methods() -> None:
    """A new method of a client is on the page of the client."""
    page = (ROOT / "docs" / "reference" / "clients.md").read_text(encoding="utf-8")
    assert "inherited_members: true" in page.split("::: tinker.RestClient\n")[1].split(":::")[0]


def test_the_cost_is_small() -> None:
    """Three operations and three schemas are fewer than a hundred lines of YAML."""
    assert len(FAMILY.splitlines()) < 100
