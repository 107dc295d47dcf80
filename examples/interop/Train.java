// Train and sample from Java, with the client that openapi-generator makes of openapi.portable.yaml:
//   openapi-generator-cli generate -g java --library native -p openApiNullable=false -i openapi.portable.yaml -o client
//   TINKER_BASE_URL=http://localhost:8000 TINKER_API_KEY=... java Train

import java.net.http.HttpClient;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.openapitools.client.ApiClient;
import org.openapitools.client.ApiException;
import org.openapitools.client.api.FuturesApi;
import org.openapitools.client.api.SamplingApi;
import org.openapitools.client.api.ServiceApi;
import org.openapitools.client.api.TrainingApi;
import org.openapitools.client.api.WeightsApi;
import org.openapitools.client.model.*;

public class Train {
    static FuturesApi futures;

    static FutureAnswer await(UntypedAPIFuture future) throws ApiException {
        while (true) {
            var request = new FutureRetrieveRequest().requestId(future.getRequestId());
            var answer = futures.retrieveFuture(request, null, null, null, null);
            if (answer.getError() != null) throw new IllegalStateException(answer.getCategory() + ": " + answer.getError());
            if (!"try_again".equals(answer.getType())) return answer;
        }
    }

    static ModelInput text(Long... tokens) {
        var chunk = new EncodedTextChunk().tokens(List.of(tokens)).type(EncodedTextChunk.TypeEnum.ENCODED_TEXT);
        return new ModelInput().chunks(List.of(new ModelInputChunk(chunk)));
    }

    static TensorData tensor(TensorDtype type, double... values) {
        return new TensorData().data(Arrays.stream(values).boxed().toList()).dtype(type).shape(List.of((long) values.length));
    }

    public static void main(String[] arguments) throws ApiException {
        var api = new ApiClient();
        api.setHttpClientBuilder(HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1));
        api.updateBaseUri(System.getenv("TINKER_BASE_URL"));
        api.setRequestInterceptor(request -> request.header("X-API-Key", System.getenv("TINKER_API_KEY")));
        futures = new FuturesApi(api);
        var service = new ServiceApi(api);
        var training = new TrainingApi(api);

        var model = service.getServerCapabilities().getSupportedModels().get(0).getModelName();
        var opened = new CreateSessionRequest().tags(List.of()).sdkVersion("0.38.0");
        var session = service.createSession(opened, null).getSessionId();
        var adapter = new CreateModelRequest().sessionId(session).modelSeqId(0L).baseModel(model).loraConfig(new LoraConfig().rank(4L));
        var run = await(training.createModel(adapter, null)).getModelId();

        var inputs = Map.of(
            "target_tokens", tensor(TensorDtype.INT64, 101, 108, 108, 111),
            "weights", tensor(TensorDtype.FLOAT32, 1, 1, 1, 1));
        var datum = new Datum().modelInput(text(104L, 101L, 108L, 108L)).lossFnInputs(inputs);
        var batch = new ForwardBackwardInput().data(List.of(datum)).lossFn("cross_entropy");
        long number = 1;
        for (int step = 0; step < 5; step++) {
            var gradients = new ForwardBackwardRequest().modelId(run).seqId(number++).forwardBackwardInput(batch);
            var output = training.forwardBackward(gradients, null, null, null);
            var update = new OptimStepRequest().modelId(run).seqId(number++).adamParams(new AdamParams().learningRate(0.05));
            var updated = training.optimStep(update, null, null);
            System.out.println("step " + step + ": loss " + await(output).getMetrics().get("loss:sum"));
            await(updated);
        }

        var save = new SaveWeightsForSamplerRequest().modelId(run).seqId(number++).samplingSessionSeqId(0L);
        var sampler = await(new WeightsApi(api).saveWeightsForSampler(save, null, null)).getSamplingSessionId();
        var drawn = new SamplingParams().maxTokens(4L).stop(List.of(0L));
        var asked = new SampleRequest().samplingSessionId(sampler).seqId(0L).numSamples(1L).prompt(text(104L)).samplingParams(drawn);
        var sampled = await(new SamplingApi(api).asample(asked, null, null));
        System.out.println("sampled " + sampled.getSequences().get(0).getTokens());
        var reason = new ClientSessionFinishReason().type("success");
        service.finishSession(session, new FinishSessionRequest().reason(reason), null);
    }
}
