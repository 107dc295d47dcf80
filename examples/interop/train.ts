// Train and sample from TypeScript, with types made of openapi.portable.yaml:
//   npx openapi-typescript openapi.portable.yaml -o schema.d.ts
//   TINKER_BASE_URL=http://localhost:8000 TINKER_API_KEY=... npx tsx train.ts
import createClient from "openapi-fetch";
import type { components, paths } from "./schema";

type Schemas = components["schemas"];

const api = createClient<paths>({
  baseUrl: process.env.TINKER_BASE_URL,
  headers: { "X-API-Key": process.env.TINKER_API_KEY ?? "" },
});

function must<T>({ data, error }: { data?: T; error?: unknown }): T {
  if (data === undefined) throw new Error(JSON.stringify(error));
  return data;
}

async function wait(future: { request_id: string }): Promise<Schemas["FutureAnswer"]> {
  for (;;) {
    const answer = must(await api.POST("/api/v1/retrieve_future", { body: { request_id: future.request_id } }));
    if (answer.error !== undefined) throw new Error(`${answer.category}: ${answer.error}`);
    if (answer.type !== "try_again") return answer;
  }
}

const { supported_models } = must(await api.GET("/api/v1/get_server_capabilities"));
const base_model = supported_models[0]?.model_name ?? "";
const { session_id } = must(
  await api.POST("/api/v1/create_session", { body: { tags: [], user_metadata: null, sdk_version: "0.38.0", type: "create_session" } }),
);
const created = await api.POST("/api/v1/create_model", {
  body: { session_id, model_seq_id: 0, base_model, lora_config: { rank: 4 }, type: "create_model" },
});
const model_id = (await wait(must(created))).model_id ?? "";

const text = [104, 101, 108, 108, 111];
const datum: Schemas["Datum"] = {
  model_input: { chunks: [{ type: "encoded_text", tokens: text.slice(0, -1) }] },
  loss_fn_inputs: {
    target_tokens: { data: text.slice(1), dtype: "int64", shape: [4] },
    weights: { data: [1, 1, 1, 1], dtype: "float32", shape: [4] },
  },
};
let seq_id = 1;
for (let step = 0; step < 5; step++) {
  const forward_backward_input = { data: [datum], loss_fn: "cross_entropy" };
  const gradients = await api.POST("/api/v1/forward_backward", { body: { model_id, seq_id: seq_id++, forward_backward_input } });
  const adam_params = { learning_rate: 0.05 };
  const update = await api.POST("/api/v1/optim_step", { body: { model_id, seq_id: seq_id++, adam_params, type: "optim_step" } });
  const output = await wait(must(gradients));
  await wait(must(update));
  console.log(`step ${step}: loss ${output.metrics?.["loss:sum"]}`);
}

const saved = await api.POST("/api/v1/save_weights_for_sampler", { body: { model_id, seq_id: seq_id++, sampling_session_seq_id: 0 } });
const { sampling_session_id } = await wait(must(saved));
const prompt = { chunks: [{ type: "encoded_text" as const, tokens: [104] }] };
const asked = await api.POST("/api/v1/asample", {
  body: { sampling_session_id, seq_id: 0, num_samples: 1, prompt, sampling_params: { max_tokens: 4 }, type: "sample" },
});
const { sequences } = await wait(must(asked));
console.log(`sampled ${sequences?.[0]?.tokens}`);
await api.POST("/api/v1/sessions/{session_id}/finish", { params: { path: { session_id } }, body: { reason: { type: "success" }, detail: null } });
