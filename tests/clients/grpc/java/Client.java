import com.google.protobuf.ByteString;
import com.google.protobuf.DescriptorProtos.FileDescriptorSet;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import io.grpc.CallOptions;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.ProtoUtils;
import io.grpc.stub.ClientCalls;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/** grpc-java, whose messages are made from the server's own descriptors. */
public final class Client {
  public static void main(String[] arguments) throws Exception {
    var set = FileDescriptorSet.parseFrom(Files.readAllBytes(Path.of(arguments[2])));
    var file = FileDescriptor.buildFrom(set.getFile(0), new FileDescriptor[0]);
    Descriptor asked = file.findMessageTypeByName("ModelInferRequest");
    Descriptor answered = file.findMessageTypeByName("ModelInferResponse");
    var method = MethodDescriptor.<DynamicMessage, DynamicMessage>newBuilder()
        .setType(MethodDescriptor.MethodType.UNARY)
        .setFullMethodName("inference.GRPCInferenceService/ModelInfer")
        .setRequestMarshaller(ProtoUtils.marshaller(DynamicMessage.getDefaultInstance(asked)))
        .setResponseMarshaller(ProtoUtils.marshaller(DynamicMessage.getDefaultInstance(answered)))
        .build();
    ManagedChannel channel = ManagedChannelBuilder.forTarget(arguments[0]).usePlaintext().build();
    var options = CallOptions.DEFAULT.withDeadlineAfter(60, TimeUnit.SECONDS);
    List<Future<DynamicMessage>> calls = new ArrayList<>();
    for (int i = 0; i < Integer.parseInt(arguments[1]); i++) {
      var request = request(asked, "own-" + i, List.of(1L, 2L), i, i + 0.5f);
      calls.add(ClientCalls.futureUnaryCall(channel.newCall(method, options), request));
    }
    List<String> answers = new ArrayList<>();
    for (Future<DynamicMessage> call : calls) {
      DynamicMessage answer = call.get();
      var raw = (ByteString) answer.getRepeatedField(answered.findFieldByName("raw_output_contents"), 0);
      ByteBuffer numbers = raw.asReadOnlyByteBuffer().order(ByteOrder.LITTLE_ENDIAN);
      String id = (String) answer.getField(answered.findFieldByName("id"));
      answers.add("[\"" + id + "\", [" + numbers.getFloat(0) + ", " + numbers.getFloat(4) + "]]");
    }
    String refused = "";
    try {
      ClientCalls.blockingUnaryCall(channel, method, options, request(asked, "", List.of(3L), 1));
    } catch (StatusRuntimeException error) {
      refused = error.getStatus().getCode().name();
    }
    System.out.println("[[" + String.join(", ", answers) + "], \"" + refused + "\"]");
    channel.shutdownNow().awaitTermination(5, TimeUnit.SECONDS);
  }

  private static DynamicMessage request(Descriptor type, String id, List<Long> shape, float... values) {
    ByteBuffer raw = ByteBuffer.allocate(4 * values.length).order(ByteOrder.LITTLE_ENDIAN);
    for (float value : values) {
      raw.putFloat(value);
    }
    Descriptor tensor = type.findFieldByName("inputs").getMessageType();
    var x = DynamicMessage.newBuilder(tensor)
        .setField(tensor.findFieldByName("name"), "x")
        .setField(tensor.findFieldByName("datatype"), "FP32")
        .setField(tensor.findFieldByName("shape"), shape);
    return DynamicMessage.newBuilder(type)
        .setField(type.findFieldByName("model_name"), "double")
        .setField(type.findFieldByName("id"), id)
        .addRepeatedField(type.findFieldByName("inputs"), x.build())
        .addRepeatedField(type.findFieldByName("raw_input_contents"), ByteString.copyFrom(raw.flip()))
        .build();
  }
}
