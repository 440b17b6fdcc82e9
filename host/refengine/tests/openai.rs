//! The OpenAI API: shapes, usage, errors.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use bytes::Bytes;
use common::{Engine, INSTANT, and, chat};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pointsman_refengine::EngineConfig;
use serde_json::{Value, json};
use tokio::net::TcpStream;

#[tokio::test]
async fn a_chat_answers_with_as_many_tokens_as_asked_for_and_says_what_they_cost() {
    let engine = Engine::with(1, INSTANT).await;
    let answer = engine.chat(&chat("hello", 5)).await;
    assert_eq!(answer.header("content-type"), "application/json");
    let body = answer.json();
    assert_eq!(
        (&body["object"], &body["model"]),
        (&json!("chat.completion"), &json!("m"))
    );
    let choice = &body["choices"][0];
    assert_eq!(
        (&choice["index"], &choice["finish_reason"]),
        (&json!(0), &json!("length"))
    );
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(
        choice["message"]["content"]
            .as_str()
            .unwrap()
            .split_whitespace()
            .count(),
        5
    );
    // "<|user|>\nhello\n<|assistant|>\n" has 29 bytes.
    assert_eq!(
        body["usage"],
        json!({"prompt_tokens": 8, "completion_tokens": 5, "total_tokens": 13,
               "prompt_tokens_details": {"cached_tokens": 0}})
    );
}

#[tokio::test]
async fn a_text_completion_answers_with_text() {
    let engine = Engine::with(1, INSTANT).await;
    let body = engine
        .post(
            "/v1/completions",
            &json!({"prompt": "once upon", "max_tokens": 3}),
        )
        .await
        .json();
    assert_eq!(
        (&body["object"], &body["model"]),
        (&json!("text_completion"), &json!("reference"))
    );
    assert_eq!(
        body["choices"][0]["text"]
            .as_str()
            .unwrap()
            .split_whitespace()
            .count(),
        3
    );
    assert_eq!(body["usage"]["prompt_tokens"], 3);
}

#[tokio::test]
async fn a_stream_is_the_role_then_a_chunk_a_token_then_the_finish_reason_then_the_usage() {
    let engine = Engine::with(1, INSTANT).await;
    let whole = engine.chat(&chat("hello", 4)).await.json();
    let fields = json!({"stream": true, "stream_options": {"include_usage": true}});
    let stream = engine.chat(&and(chat("hello", 4), fields)).await;
    assert!(
        stream
            .header("content-type")
            .starts_with("text/event-stream")
    );
    let events = stream.events();
    assert_eq!(events.len(), 1 + 4 + 1 + 1);
    assert!(
        events
            .iter()
            .all(|e| e["object"] == "chat.completion.chunk" && e["id"] == events[0]["id"])
    );
    assert_eq!(
        events[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    let content: String = events[1..5]
        .iter()
        .map(|e| e["choices"][0]["delta"]["content"].as_str().unwrap())
        .collect();
    assert_eq!(
        content,
        whole["choices"][0]["message"]["content"].as_str().unwrap()
    );
    let reasons: Vec<_> = events[..6]
        .iter()
        .map(|e| &e["choices"][0]["finish_reason"])
        .collect();
    assert!(reasons[..5].iter().all(|r| r.is_null()) && *reasons[5] == "length");
    assert_eq!(
        (&events[6]["choices"], &events[6]["usage"]),
        (&json!([]), &whole["usage"])
    );
}

#[tokio::test]
async fn a_stream_of_text_has_no_role_and_no_usage_unless_asked_for() {
    let engine = Engine::with(1, INSTANT).await;
    let body = json!({"prompt": "x", "max_tokens": 2, "stream": true});
    let events = engine.post("/v1/completions", &body).await.events();
    assert_eq!(events.len(), 3);
    assert!(
        events
            .iter()
            .all(|e| e["object"] == "text_completion" && e.get("usage").is_none())
    );
    assert!(events.iter().all(|e| e["choices"][0]["text"].is_string()));
}

#[tokio::test]
async fn the_wanted_rank_serves_and_the_response_says_which() {
    let engine = Engine::with(4, INSTANT).await;
    for rank in ["0", "3"] {
        let headers = [("x-data-parallel-rank", rank), ("x-request-id", "r-1")];
        let body = and(chat("x", 1), json!({"data_parallel_rank": 1})).to_string();
        let answer = engine
            .call(Method::POST, "/v1/chat/completions", &headers, body)
            .await;
        assert_eq!(answer.header("x-engine-rank"), rank);
        assert_eq!(answer.header("x-engine-name"), "engine");
        assert_eq!(answer.header("x-request-id"), "r-1");
    }
    for field in ["routed_dp_rank", "data_parallel_rank"] {
        let answer = engine
            .chat(&and(chat("x", 1), json!({field: 2, "stream": true})))
            .await;
        assert_eq!(answer.header("x-engine-rank"), "2");
    }
    let served: Vec<_> = engine
        .stats()
        .await
        .ranks
        .iter()
        .map(|r| r.requests_total)
        .collect();
    assert_eq!(served, [1, 0, 2, 1]);
}

#[tokio::test]
async fn an_unknown_rank_is_the_clients_error() {
    let engine = Engine::with(4, INSTANT).await;
    for rank in ["4", "x", "-1", ""] {
        let headers = [("x-data-parallel-rank", rank)];
        let body = chat("x", 1).to_string();
        let answer = engine
            .call(Method::POST, "/v1/chat/completions", &headers, body)
            .await;
        let error = &answer.json()["error"];
        assert_eq!(
            (answer.status.as_u16(), &error["type"]),
            (400, &json!("invalid_request_error"))
        );
        assert!(
            error["message"].as_str().unwrap().contains("from 0 to 3"),
            "{error}"
        );
    }
    assert!(
        engine
            .stats()
            .await
            .ranks
            .iter()
            .all(|r| r.requests_total == 0)
    );
}

#[tokio::test]
async fn wrong_requests_get_the_matching_status() {
    let engine = Engine::start(EngineConfig {
        max_body_bytes: 1000,
        ..EngineConfig::default()
    })
    .await;
    let chat_path = "/v1/chat/completions";
    let long = "x".repeat(2000);
    let cases: [(Method, &str, &str, u16); 12] = [
        (Method::POST, chat_path, "{", 400),
        (Method::POST, chat_path, "[]", 400),
        (Method::POST, chat_path, "\u{0}\u{1}", 400),
        (Method::POST, chat_path, "{}", 400),
        (Method::POST, chat_path, r#"{"messages":"hi"}"#, 400),
        (Method::POST, "/v1/completions", "{}", 400),
        (Method::POST, chat_path, &long, 413),
        (Method::GET, chat_path, "", 405),
        (Method::POST, "/health", "", 405),
        (Method::GET, "/v2", "", 404),
        (Method::POST, "/fault", r#"{"mode":"explode"}"#, 400),
        (Method::GET, "/health", "", 200),
    ];
    for (method, path, body, status) in cases {
        let answer = engine
            .call(method.clone(), path, &[], body.to_owned())
            .await;
        assert_eq!(answer.status.as_u16(), status, "{method} {path} {body}");
        assert_eq!(answer.header("x-engine-name"), "engine");
        if status >= 400 {
            assert!(answer.json()["error"]["message"].is_string());
        }
    }
}

#[tokio::test]
async fn a_prompt_that_can_never_fit_the_cache_is_the_clients_error() {
    let engine = Engine::with(1, INSTANT).await;
    let body = chat(&"x".repeat(4 * 12_500 * 64), 1);
    let answer = engine.chat(&body).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
}

#[tokio::test]
async fn models_and_metrics_can_be_read() {
    let engine = Engine::with(2, INSTANT).await;
    let models = engine.get("/v1/models").await.json();
    assert_eq!(
        (&models["object"], &models["data"][0]["id"]),
        (&json!("list"), &json!("reference"))
    );
    engine.chat(&chat("x", 3)).await;
    let metrics = engine.get("/metrics?x=1").await;
    assert!(
        metrics
            .header("content-type")
            .starts_with("text/plain; version=0.0.4")
    );
    let text = String::from_utf8(metrics.body.to_vec()).unwrap();
    for sample in [
        "pointsman_engine_generation_tokens_total{engine=\"0\"} 3\n",
        "pointsman_engine_requests_running{engine=\"1\"} 0\n",
    ] {
        assert!(text.contains(sample), "{text}");
    }
}

#[tokio::test]
async fn tool_calls_are_part_of_the_prompt() {
    let engine = Engine::with(1, INSTANT).await;
    let tokens = async |message: Value| {
        let body = json!({"messages": [message], "max_tokens": 1});
        engine.chat(&body).await.json()["usage"]["prompt_tokens"]
            .as_u64()
            .unwrap()
    };
    let plain = tokens(json!({"role": "assistant", "content": "x"})).await;
    let call = json!([{"id": "c", "function": {"name": "f", "arguments": "{}"}}]);
    assert!(tokens(json!({"role": "assistant", "content": "x", "tool_calls": call})).await > plain);
}

#[tokio::test]
async fn http_2_without_tls_is_spoken_on_the_same_port() {
    let engine = Engine::with(1, INSTANT).await;
    let stream = TokioIo::new(TcpStream::connect(engine.address).await.unwrap());
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream)
            .await
            .unwrap();
    tokio::spawn(connection);
    let request = |body: Value| {
        let uri = format!("http://{}/v1/chat/completions", engine.address);
        Request::post(uri)
            .body(Full::new(Bytes::from(body.to_string())))
            .unwrap()
    };
    let streamed = request(and(chat("x", 2), json!({"stream": true})));
    let (one, two) = (
        sender.send_request(streamed).await,
        sender.send_request(request(chat("x", 2))).await,
    );
    let text = one.unwrap().into_body().collect().await.unwrap().to_bytes();
    assert!(text.starts_with(b"data: {") && text.ends_with(b"data: [DONE]\n\n"));
    assert_eq!(two.unwrap().headers()["x-engine-rank"], "0");
}
