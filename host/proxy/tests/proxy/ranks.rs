//! The rank is conveyed as the engine expects it, and a client cannot forge it.

use crate::harness::*;
use pointsman_proxy::Dialect;

async fn seen_with(dialect: Dialect, body: &'static str) -> Seen {
    let engine = Engine::start(|_| async { text("ok") }).await;
    let rig = (Rig::new().url("a", &engine.url(), 2))
        .with(|settings| settings.pools[0].dialect = dialect)
        .start();
    let headers = [("x-pointsman-target", "a/1"), ("x-data-parallel-rank", "9")];
    let got = rig.send(post("/v1/chat/completions", &headers, body)).await;
    assert_eq!(got.status, 200);
    engine.last()
}

#[tokio::test]
async fn vllm_gets_a_header() {
    let seen = seen_with(Dialect::Vllm, r#"{"a":1}"#).await;
    let ranks: Vec<_> = seen
        .headers
        .get_all("x-data-parallel-rank")
        .iter()
        .collect();
    assert_eq!(ranks, ["1"]);
    assert_eq!(seen.text(), r#"{"a":1}"#);
}

#[tokio::test]
async fn sglang_gets_a_field_and_atom_another() {
    let seen = seen_with(Dialect::Sglang, r#"{"a":1}"#).await;
    assert_eq!(seen.text(), r#"{"a":1,"routed_dp_rank":1}"#);
    assert_eq!(seen.header("x-data-parallel-rank"), None);
    assert_eq!(seen.header("content-length"), Some("26"));
    let seen = seen_with(Dialect::Atom, r#"{"data_parallel_rank":7,"a":1}"#).await;
    assert_eq!(seen.text(), r#"{"a":1,"data_parallel_rank":1}"#);
}

#[tokio::test]
async fn an_openai_engine_gets_none() {
    let seen = seen_with(Dialect::OpenAi, r#"{"a":1}"#).await;
    assert_eq!(seen.text(), r#"{"a":1}"#);
    assert_eq!(seen.header("x-data-parallel-rank"), None);
}

#[tokio::test]
async fn what_is_no_object_passes_as_it_is() {
    for body in ["", "[1]", "{not json"] {
        assert_eq!(seen_with(Dialect::Sglang, body).await.text(), body);
    }
}
