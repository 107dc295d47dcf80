"""Train and sample with a client that openapi-python-client made of openapi.portable.yaml, and
nothing else of this project.

openapi-python-client generate --path openapi.portable.yaml --output-path stock --meta none
TINKER_BASE_URL=http://localhost:8000 TINKER_API_KEY=... python stock_client.py
"""

import os
from typing import TypeVar

from stock import AuthenticatedClient
from stock import models as m
from stock.api.futures import retrieve_future
from stock.api.sampling import asample
from stock.api.service import create_session, finish_session, get_server_capabilities
from stock.api.training import create_model, forward_backward, optim_step
from stock.api.weights import save_weights_for_sampler

T = TypeVar("T")
api = AuthenticatedClient(
    base_url=os.environ["TINKER_BASE_URL"],
    token=os.environ["TINKER_API_KEY"],
    prefix="",
    auth_header_name="X-API-Key",
)


def expect(answer: object, kind: type[T]) -> T:
    if not isinstance(answer, kind):
        raise SystemExit(f"{kind.__name__} was expected, got {answer}")
    return answer


def wait(future: object) -> m.FutureAnswer:
    """Poll until the result is there."""
    request_id = expect(future, m.UntypedAPIFuture).request_id
    while True:
        answer = expect(
            retrieve_future.sync(client=api, body=m.FutureRetrieveRequest(request_id=request_id)),
            m.FutureAnswer,
        )
        if answer.error:
            raise SystemExit(f"{answer.category}: {answer.error}")
        if answer.type_ != "try_again":
            return answer


capabilities = expect(get_server_capabilities.sync(client=api), m.GetServerCapabilitiesResponse)
base_model = str(capabilities.supported_models[0].model_name)
session = create_session.sync(
    client=api, body=m.CreateSessionRequest(tags=[], sdk_version="0.38.0", type_="create_session")
)
session_id = expect(session, m.CreateSessionResponse).session_id
adapter = m.CreateModelRequest(
    session_id=session_id, model_seq_id=0, base_model=base_model, lora_config=m.LoraConfig(rank=4)
)
model_id = expect(wait(create_model.sync(client=api, body=adapter)).model_id, str)

text = [104, 101, 108, 108, 111]
inputs = m.TensorMap()
inputs["target_tokens"] = m.TensorData(data=[*text[1:]], dtype=m.TensorDtype.INT64, shape=[4])
inputs["weights"] = m.TensorData(data=[1.0] * 4, dtype=m.TensorDtype.FLOAT32, shape=[4])
prompt = m.ModelInput(chunks=[m.EncodedTextChunk(tokens=text[:-1], type_="encoded_text")])
batch = m.ForwardBackwardInput(
    data=[m.Datum(model_input=prompt, loss_fn_inputs=inputs)], loss_fn="cross_entropy"
)
for step in range(5):
    gradients = m.ForwardBackwardRequest(
        model_id=model_id, seq_id=2 * step + 1, forward_backward_input=batch
    )
    adam = m.OptimStepRequest(
        model_id=model_id,
        seq_id=2 * step + 2,
        adam_params=m.AdamParams(learning_rate=0.05),
        type_="optim_step",
    )
    futures = (
        forward_backward.sync(client=api, body=gradients),
        optim_step.sync(client=api, body=adam),
    )
    output, _ = wait(futures[0]), wait(futures[1])
    print(f"step {step}: loss {expect(output.metrics, m.MetricMap)['loss:sum']}")

save = m.SaveWeightsForSamplerRequest(model_id=model_id, seq_id=11, sampling_session_seq_id=0)
saved = wait(save_weights_for_sampler.sync(client=api, body=save))
prompt = m.ModelInput(chunks=[m.EncodedTextChunk(tokens=[104], type_="encoded_text")])
request = m.SampleRequest(
    sampling_session_id=saved.sampling_session_id, seq_id=0, num_samples=1, prompt=prompt,
    sampling_params=m.SamplingParams(max_tokens=4), type_="sample",
)  # fmt: skip
sampled = wait(asample.sync(client=api, body=request))
print("sampled", *expect(sampled.sequences, list)[0].tokens)
reason = m.ClientSessionFinishReason(type_="success")
finish_session.sync_detailed(
    session_id, client=api, body=m.FinishSessionRequest(reason=reason, detail=None)
)
