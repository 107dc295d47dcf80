// Train and sample from Go, with the client that openapi-generator makes of openapi.portable.yaml:
//
//	openapi-generator-cli generate -g go -p packageName=api -i openapi.portable.yaml -o client
//	TINKER_BASE_URL=http://localhost:8000 TINKER_API_KEY=... go run ./train
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"

	"github.com/GIT_USER_ID/GIT_REPO_ID" // package api
)

var (
	client *api.APIClient
	ctx    = context.Background()
)

func must[T any](answer T, _ *http.Response, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return answer
}

func wait(future *api.UntypedAPIFuture) *api.FutureAnswer {
	request := *api.NewFutureRetrieveRequest(future.RequestId)
	for {
		answer := must(client.FuturesAPI.RetrieveFuture(ctx).FutureRetrieveRequest(request).Execute())
		if message, failed := answer.GetErrorOk(); failed {
			log.Fatalf("%s: %s", answer.GetCategory(), *message)
		}
		if answer.GetType() != "try_again" {
			return answer
		}
	}
}

func text(tokens ...int64) api.ModelInput {
	chunk := api.NewEncodedTextChunk(tokens, "encoded_text")
	return *api.NewModelInput([]api.ModelInputChunk{api.EncodedTextChunkAsModelInputChunk(chunk)})
}

func tensor(dtype api.TensorDtype, values ...float64) api.TensorData {
	data := api.NewTensorData(values, dtype)
	data.SetShape([]int64{int64(len(values))})
	return *data
}

func main() {
	settings := api.NewConfiguration()
	settings.Servers = api.ServerConfigurations{{URL: os.Getenv("TINKER_BASE_URL")}}
	settings.AddDefaultHeader("X-API-Key", os.Getenv("TINKER_API_KEY"))
	client = api.NewAPIClient(settings)
	service, training := client.ServiceAPI, client.TrainingAPI

	model := must(service.GetServerCapabilities(ctx).Execute()).SupportedModels[0].GetModelName()
	opened := *api.NewCreateSessionRequest([]string{}, "0.38.0")
	session := must(service.CreateSession(ctx).CreateSessionRequest(opened).Execute()).SessionId
	adapter := api.NewCreateModelRequest(session, 0, model)
	adapter.SetLoraConfig(*api.NewLoraConfig(4))
	run := wait(must(training.CreateModel(ctx).CreateModelRequest(*adapter).Execute())).GetModelId()

	inputs := map[string]api.TensorData{
		"target_tokens": tensor(api.INT64, 101, 108, 108, 111),
		"weights":       tensor(api.FLOAT32, 1, 1, 1, 1),
	}
	datum := *api.NewDatum(inputs, text(104, 101, 108, 108))
	batch := *api.NewForwardBackwardInput([]api.Datum{datum}, "cross_entropy")
	number := int64(0)
	next := func() int64 { number++; return number }
	for step := range 5 {
		gradients := api.NewForwardBackwardRequest(batch, run)
		gradients.SetSeqId(next())
		output := must(training.ForwardBackward(ctx).ForwardBackwardRequest(*gradients).Execute())
		adam, update := api.NewAdamParams(), api.NewOptimStepRequest(run)
		adam.SetLearningRate(0.05)
		update.SetAdamParams(*adam)
		update.SetSeqId(next())
		updated := must(training.OptimStep(ctx).OptimStepRequest(*update).Execute())
		fmt.Printf("step %d: loss %v\n", step, wait(output).GetMetrics()["loss:sum"])
		wait(updated)
	}

	save := api.NewSaveWeightsForSamplerRequest(run)
	save.SetSeqId(next())
	save.SetSamplingSessionSeqId(0)
	saved := wait(must(client.WeightsAPI.SaveWeightsForSampler(ctx).SaveWeightsForSamplerRequest(*save).Execute()))
	drawn := api.NewSamplingParams()
	drawn.SetMaxTokens(4)
	drawn.SetStop([]int64{0})
	asked := api.NewSampleRequest(text(104), *drawn)
	asked.SetSamplingSessionId(saved.GetSamplingSessionId())
	asked.SetSeqId(0)
	sampled := wait(must(client.SamplingAPI.Asample(ctx).SampleRequest(*asked).Execute()))
	fmt.Println("sampled", sampled.GetSequences()[0].Tokens)
	finish := api.NewFinishSessionRequestWithDefaults()
	finish.SetReason(*api.NewClientSessionFinishReason("success"))
	if _, err := service.FinishSession(ctx, session).FinishSessionRequest(*finish).Execute(); err != nil {
		log.Fatal(err)
	}
}
