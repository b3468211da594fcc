//! A model on axum, so on hyper: it answers some requests without reading their bodies.

use std::time::Duration;

use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{json, Value};

async fn predict(Json(body): Json<Value>) -> Result<Json<Value>, (StatusCode, &'static str)> {
    tokio::time::sleep(Duration::from_millis(10)).await;
    let instances = body["instances"].as_array().cloned().unwrap_or_default();
    if instances.iter().any(|instance| instance == "bad") {
        return Err((StatusCode::INTERNAL_SERVER_ERROR, "a bug that one instance meets"));
    }
    let predictions: Vec<Value> = instances.into_iter().map(|instance| json!({"got": instance})).collect();
    Ok(Json(json!({"predictions": predictions})))
}

#[tokio::main]
async fn main() {
    let port = std::env::args().nth(1).expect("expected a port");
    let app = Router::new()
        .route("/", get(|| async { "ready" }))
        .route("/predict", post(predict))
        .route("/refuse", post(|| async { (StatusCode::PAYLOAD_TOO_LARGE, "too large") }))
        .route("/ignore", post(|| async { "whatever it was" }));
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await.expect("expected a free port");
    axum::serve(listener, app).await.expect("expected to serve");
}
