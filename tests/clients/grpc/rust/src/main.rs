//! tonic, with the fields of the messages that it uses.

use tonic::{codegen::http::uri::PathAndQuery, transport::Channel, Code, Request, Status};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, prost::Message)]
struct Tensor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    datatype: String,
    #[prost(int64, repeated, tag = "3")]
    shape: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct InferRequest {
    #[prost(string, tag = "1")]
    model_name: String,
    #[prost(string, tag = "3")]
    id: String,
    #[prost(message, repeated, tag = "5")]
    inputs: Vec<Tensor>,
    #[prost(bytes = "vec", repeated, tag = "7")]
    raw_input_contents: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct InferResponse {
    #[prost(string, tag = "3")]
    id: String,
    #[prost(bytes = "vec", repeated, tag = "6")]
    raw_output_contents: Vec<Vec<u8>>,
}

async fn infer(channel: Channel, id: String, shape: Vec<i64>, values: Vec<f32>) -> Result<InferResponse, Status> {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let x = Tensor { name: "x".into(), datatype: "FP32".into(), shape };
    let raw = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let message = InferRequest { model_name: "double".into(), id, inputs: vec![x], raw_input_contents: vec![raw] };
    let mut request = Request::new(message);
    request.set_timeout(std::time::Duration::from_secs(60));
    let path = PathAndQuery::from_static("/inference.GRPCInferenceService/ModelInfer");
    let codec = ProstCodec::<InferRequest, InferResponse>::default();
    Ok(client.unary(request, path, codec).await?.into_inner())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let channel = Channel::from_shared(format!("http://{}", arguments[1]))?.connect().await?;
    let count: usize = arguments[2].parse()?;
    let calls: Vec<_> = (0..count)
        .map(|i| {
            let values = vec![i as f32, i as f32 + 0.5];
            tokio::spawn(infer(channel.clone(), format!("own-{i}"), vec![1, 2], values))
        })
        .collect();
    let mut answers = Vec::new();
    for call in calls {
        let answer = call.await??;
        let raw = &answer.raw_output_contents[0];
        let numbers: Vec<f32> =
            raw.chunks(4).map(|piece| f32::from_le_bytes(piece.try_into().expect("four bytes"))).collect();
        answers.push(format!("[\"{}\", {:?}]", answer.id, numbers));
    }
    let refused = match infer(channel, String::new(), vec![3], vec![1.0]).await {
        Err(status) if status.code() == Code::InvalidArgument => "INVALID_ARGUMENT".to_string(),
        other => format!("{other:?}"),
    };
    println!("[[{}], \"{}\"]", answers.join(", "), refused.replace('"', "'"));
    Ok(())
}
