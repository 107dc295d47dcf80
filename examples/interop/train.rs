// Train and sample from Rust, with the client that openapi-generator makes of openapi.portable.yaml:
//   openapi-generator-cli generate -g rust -p supportAsync=false -i openapi.portable.yaml -o client
//   TINKER_BASE_URL=http://localhost:8000 TINKER_API_KEY=... cargo run --example train

use openapi::apis::configuration::{ApiKey, Configuration};
use openapi::apis::{futures_api, sampling_api, service_api, training_api, weights_api};
use openapi::models::{self, encoded_text_chunk};
use std::collections::HashMap;
use std::env;
use std::error::Error;

type Answer = Result<models::FutureAnswer, Box<dyn Error>>;

fn wait(api: &Configuration, future: models::UntypedApiFuture) -> Answer {
    loop {
        let request = models::FutureRetrieveRequest::new(future.request_id.clone());
        let answer = futures_api::retrieve_future(api, request, None, None, None, None)?;
        if let Some(error) = answer.error {
            return Err(format!("{:?}: {error}", answer.category).into());
        }
        if answer.r#type.as_ref().and_then(Option::as_deref) != Some("try_again") {
            return Ok(answer);
        }
    }
}

fn text(tokens: &[i64]) -> models::ModelInput {
    let chunk = models::EncodedTextChunk::new(tokens.to_vec(), encoded_text_chunk::Type::EncodedText);
    models::ModelInput::new(vec![models::ModelInputChunk::EncodedText(Box::new(chunk))])
}

fn tensor(dtype: models::TensorDtype, values: &[f64]) -> models::TensorData {
    let mut data = models::TensorData::new(values.to_vec(), dtype);
    data.shape = Some(Some(vec![values.len() as i64]));
    data
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut api = Configuration::new();
    api.base_path = env::var("TINKER_BASE_URL")?;
    api.api_key = Some(ApiKey { prefix: None, key: env::var("TINKER_API_KEY")? });

    let mut models = service_api::get_server_capabilities(&api)?.supported_models;
    let model = models.remove(0).model_name.flatten().unwrap_or_default();
    let opened = models::CreateSessionRequest::new(vec![], "0.38.0".into());
    let session = service_api::create_session(&api, opened, None)?.session_id;
    let mut adapter = models::CreateModelRequest::new(session.clone(), 0, model);
    adapter.lora_config = Some(Some(Box::new(models::LoraConfig::new(4))));
    let run = wait(&api, training_api::create_model(&api, adapter, None)?)?.model_id.flatten().unwrap_or_default();

    let inputs = HashMap::from([
        ("target_tokens".to_string(), tensor(models::TensorDtype::Int64, &[101.0, 108.0, 108.0, 111.0])),
        ("weights".to_string(), tensor(models::TensorDtype::Float32, &[1.0; 4])),
    ]);
    let datum = models::Datum::new(inputs, text(&[104, 101, 108, 108]));
    let batch = models::ForwardBackwardInput::new(vec![datum], "cross_entropy".into());
    for step in 0..5 {
        let mut gradients = models::ForwardBackwardRequest::new(batch.clone(), run.clone());
        gradients.seq_id = Some(Some(2 * step + 1));
        let mut adam = models::AdamParams::new();
        adam.learning_rate = Some(0.05);
        let mut update = models::OptimStepRequest::new(run.clone());
        update.seq_id = Some(Some(2 * step + 2));
        update.adam_params = Some(Some(Box::new(adam)));
        let output = training_api::forward_backward(&api, gradients, None, None, None)?;
        let updated = training_api::optim_step(&api, update, None, None)?;
        let metrics = wait(&api, output)?.metrics.flatten().unwrap_or_default();
        println!("step {step}: loss {}", metrics["loss:sum"]);
        wait(&api, updated)?;
    }

    let mut save = models::SaveWeightsForSamplerRequest::new(run);
    save.seq_id = Some(Some(11));
    save.sampling_session_seq_id = Some(Some(0));
    let saved = wait(&api, weights_api::save_weights_for_sampler(&api, save, None, None)?)?;
    let mut drawn = models::SamplingParams::new();
    drawn.max_tokens = Some(Some(4));
    drawn.stop = Some(Some(vec![0].into()));
    let mut asked = models::SampleRequest::new(text(&[104]), drawn);
    asked.sampling_session_id = saved.sampling_session_id;
    asked.seq_id = Some(Some(0));
    let sampled = wait(&api, sampling_api::asample(&api, asked, None, None)?)?;
    println!("sampled {:?}", sampled.sequences.unwrap_or_default()[0].tokens);
    let reason = models::ClientSessionFinishReason::new("success".into());
    let finish = models::FinishSessionRequest::new(reason, None);
    service_api::finish_session(&api, &session, finish, None)?;
    Ok(())
}
