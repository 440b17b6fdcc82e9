//! A native reference engine: what a router needs of an inference engine, without a GPU.
//!
//! One process is one endpoint with N data-parallel ranks. Each rank has a paged prefix cache of
//! its own and batches continuously under a cost model, so that a good routing decision shows in
//! TTFT, in cached tokens and in prefill work, as it does with vLLM or SGLang. No model runs: the
//! text is made of short words that depend on the prompt alone.
//!
//! ```no_run
//! # async fn start() -> Result<(), Box<dyn std::error::Error>> {
//! use pointsman_refengine::{EngineConfig, Preset, Server};
//!
//! let config = EngineConfig { ranks: 4, preset: Preset::named("h200-8b")?, ..EngineConfig::default() };
//! let server = Server::bind(config, "127.0.0.1:9001".parse()?).await?;
//! println!("listening on {}", server.local_addr());
//! server.run(async { drop(tokio::signal::ctrl_c().await) }).await;
//! # Ok(()) }
//! ```
//!
//! The layers, each ignorant of the ones above it:
//!
//! | layer | modules | knows |
//! |---|---|---|
//! | model | [`cost`], [`preset`], [`tokens`], [`cache`], [`scheduler`], [`delayer`] | no clock, no I/O: the same code runs in virtual time |
//! | virtual time | [`lockstep`], [`recording`] | all ranks in one thread, in exact order |
//! | real time | [`collective`], `clock`, `gate`, `pacer`, `trace`, `rank`, `balancer`, `engine` | one thread a rank |
//! | wire | `openai`, `stream`, `fault`, `http`, [`Server`] | hyper |
//!
//! Endpoints: `POST /v1/chat/completions`, `POST /v1/completions`, `GET /v1/models`,
//! `GET /health`, `GET /metrics`. As SGLang has them: `GET /server_info` (settings, and each rank's
//! state), `POST /set_internal_state` (changes settings of the scheduler), `POST /start_profile` and
//! `POST /stop_profile` (which answers with what each rank did in between). Of this engine only:
//! `GET /profile/trace?rank=N` (that in detail, in the Chrome trace event format),
//! `GET /stats` (the figures of `/metrics` as JSON), `POST /reset` (empties caches and counters),
//! `POST /fault` (misbehave on purpose, see [`Fault`]).

pub mod cache;
pub mod collective;
pub mod cost;
pub mod delayer;
pub mod lockstep;
pub mod preset;
pub mod recording;
pub mod scheduler;
pub mod tokens;

mod balancer;
mod clock;
mod config;
mod engine;
mod error;
mod fault;
mod gate;
mod http;
mod openai;
mod pacer;
mod profile;
mod rank;
mod server;
mod settings;
mod stats;
mod stream;
mod trace;

pub use config::{EngineConfig, MAX_OUTPUT_TOKENS, MAX_RANKS};
pub use cost::CostModel;
pub use error::{ConfigError, Error};
pub use fault::{After, Fault, FaultMode};
pub use http::{DP_RANK_HEADER, ENGINE_NAME_HEADER, ENGINE_RANK_HEADER, REQUEST_ID_HEADER};
pub use preset::Preset;
pub use server::Server;
pub use settings::{BadSetting, Settings};
pub use stats::{EngineStats, RankStats};
