//! What is found in the cache, and where.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::{Engine, INSTANT, and, chat, text};
use pointsman_refengine::{EngineConfig, Preset};
use serde_json::json;

#[tokio::test]
async fn the_same_text_in_two_sessions_hits_and_a_changed_first_word_misses() {
    let engine = Engine::with(1, INSTANT).await;
    let long = text("w", 500);
    let in_session = async |id: &str, text: &str| {
        let headers = [("x-session-id", id)];
        let body = chat(text, 4).to_string();
        engine
            .call(http::Method::POST, "/v1/chat/completions", &headers, body)
            .await
    };
    let first = in_session("one", &long).await;
    let prompt_tokens = first.json()["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(first.cached_tokens(), 0);
    let second = in_session("two", &long).await;
    assert_eq!(second.cached_tokens(), (prompt_tokens - 1) / 64 * 64);
    let changed = long.replacen('w', "v", 1);
    assert_eq!(in_session("one", &changed).await.cached_tokens(), 0);

    let stats = engine.stats().await.ranks[0];
    assert_eq!(stats.prompt_tokens_total, 3 * prompt_tokens);
    assert_eq!(stats.cached_tokens_total, second.cached_tokens());
    assert_eq!(
        stats.prefill_tokens_computed_total,
        stats.prompt_tokens_total - stats.cached_tokens_total
    );
}

#[tokio::test]
async fn the_next_turn_hits_the_prompt_and_the_answer_of_the_turn_before() {
    let engine = Engine::with(1, INSTANT).await;
    let turn = chat(&text("w", 100), 1000);
    let answer = engine.chat(&turn).await.json();
    let total = answer["usage"]["total_tokens"].as_u64().unwrap();
    let mut next = turn;
    let messages = next["messages"].as_array_mut().unwrap();
    messages.push(answer["choices"][0]["message"].clone());
    messages.push(json!({"role": "user", "content": "go on"}));
    // The KV of the last generated token was never computed.
    assert_eq!(
        engine.chat(&next).await.cached_tokens(),
        (total - 1) / 64 * 64
    );
}

#[tokio::test]
async fn each_rank_has_a_cache_of_its_own() {
    let engine = Engine::with(2, INSTANT).await;
    let on = |rank: u32| and(chat(&text("w", 200), 1), json!({"routed_dp_rank": rank}));
    assert_eq!(engine.chat(&on(0)).await.cached_tokens(), 0);
    assert_eq!(engine.chat(&on(1)).await.cached_tokens(), 0);
    assert!(engine.chat(&on(0)).await.cached_tokens() > 0);
}

#[tokio::test]
async fn at_capacity_the_least_recently_used_prompt_is_evicted() {
    let preset = Preset {
        cache_blocks: 7,
        max_num_seqs: 7,
        max_num_batched_tokens: 7 * Preset::BLOCK_TOKENS,
        ..Preset::default()
    };
    let config = EngineConfig {
        time_scale: INSTANT,
        preset,
        ..EngineConfig::default()
    };
    let engine = Engine::start(config).await;
    let ask = async |seed: &str| {
        engine
            .chat(&chat(&text(seed, 200), 1))
            .await
            .cached_tokens()
            > 0
    };
    // Each leaves 3 full blocks and needs a fourth while it runs: there is room for two.
    assert_eq!(
        [ask("a").await, ask("b").await, ask("a").await],
        [false, false, true]
    );
    assert_eq!(
        [ask("c").await, ask("a").await, ask("b").await],
        [false, true, false]
    );
    let stats = engine.stats().await.ranks[0];
    assert!(
        stats.cache_evictions_total > 0 && stats.cache_blocks_used <= 7,
        "{stats:?}"
    );
    assert_eq!(stats.cache_blocks_referenced, 0);
}

#[tokio::test]
async fn reset_empties_caches_and_counters() {
    let engine = Engine::with(2, INSTANT).await;
    let body = chat(&text("w", 200), 1);
    engine.chat(&body).await;
    assert!(engine.stats().await.ranks[0].cache_blocks_used > 0);
    assert_eq!(engine.post("/reset", &json!(null)).await.status, 200);
    let stats = engine.stats().await.ranks[0];
    assert_eq!((stats.cache_blocks_used, stats.requests_total), (0, 0));
    assert_eq!(engine.chat(&body).await.cached_tokens(), 0);
}
