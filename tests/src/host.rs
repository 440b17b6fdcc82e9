//! Engines, the host before them, and a client.

use crate::metrics::Metrics;
use crate::process::Process;
use anyhow::{Context, Result};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use std::io::Write;
use std::time::Duration;
use tempfile::NamedTempFile;

/// A reference engine.
pub struct Engine {
    /// its endpoint's name
    pub name: String,
    /// data-parallel ranks
    pub ranks: usize,
    /// where it listens
    pub url: String,
    /// the process
    pub process: Process,
}

impl Engine {
    /// On a free port, a hundred times faster than modelled.
    ///
    /// # Errors
    /// If it does not come up.
    pub async fn start(name: &str, ranks: usize) -> Result<Engine> {
        Engine::start_with(name, ranks, "127.0.0.1:0", "0.01").await
    }

    /// At an address, with a time scale.
    ///
    /// # Errors
    /// If it does not come up.
    pub async fn start_with(
        name: &str,
        ranks: usize,
        listen: &str,
        time_scale: &str,
    ) -> Result<Engine> {
        let ranks_text = ranks.to_string();
        let process = Process::start(&[
            "engine",
            "--listen",
            listen,
            "--ranks",
            &ranks_text,
            "--name",
            name,
            "--time-scale",
            time_scale,
        ])
        .await?;
        Ok(Engine {
            name: name.to_owned(),
            ranks,
            url: process.urls.first().context("no address")?.clone(),
            process,
        })
    }

    /// "127.0.0.1:port", to start another one in its place.
    pub fn address(&self) -> String {
        self.url.trim_start_matches("http://").to_owned()
    }
}

/// A running `pointsman serve`.
pub struct Host {
    /// where clients come in
    pub url: String,
    /// where operators come in
    pub admin: String,
    /// the process
    pub process: Process,
    client: Client,
    config: NamedTempFile,
}

/// A response, read to its end.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status
    pub status: u16,
    /// "endpoint/rank", as the host explains
    pub target: String,
    /// the policy's word
    pub reason: String,
    /// the rank that served, as the engine says
    pub rank: String,
    /// the body
    pub body: Value,
}

impl Host {
    /// With a policy (a built-in name or a path), before these engines.
    ///
    /// # Errors
    /// If it does not come up.
    pub async fn start(policy: &str, engines: &[&Engine]) -> Result<Host> {
        Host::start_with(policy, "", engines).await
    }

    /// And more lines for the `[policy]` section, or whole sections after it.
    ///
    /// # Errors
    /// If it does not come up.
    pub async fn start_with(policy: &str, more: &str, engines: &[&Engine]) -> Result<Host> {
        let endpoints: String = (engines.iter())
            .map(|e| {
                format!(
                    "  {{ name = \"{}\", url = \"{}\", ranks = {} }},\n",
                    e.name, e.url, e.ranks
                )
            })
            .collect();
        let config = format!(
            "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
             [policy]\nuse = \"{policy}\"\n{more}\n\
             [[pool]]\nname = \"main\"\nrole = \"serve\"\ndialect = \"vllm\"\n\
             endpoints = [\n{endpoints}]\n\
             health = {{ interval = \"50ms\", timeout = \"1s\" }}\n"
        );
        Host::start_config(&config).await
    }

    /// With a whole configuration.
    ///
    /// # Errors
    /// If it does not come up.
    pub async fn start_config(config: &str) -> Result<Host> {
        Host::start_changed(config, |_| {}).await
    }

    /// With a whole configuration, and something about the command changed.
    ///
    /// # Errors
    /// If it does not come up.
    pub async fn start_changed(
        config: &str,
        change: impl FnOnce(&mut tokio::process::Command),
    ) -> Result<Host> {
        let mut file = tempfile::Builder::new().suffix(".toml").tempfile()?;
        file.write_all(config.as_bytes())?;
        let path = file.path().to_string_lossy().into_owned();
        let process = Process::start_with(&["serve", "--config", &path], change).await?;
        let [url, metrics] = process.urls.as_slice() else {
            anyhow::bail!("two addresses wanted, found {:?}", process.urls);
        };
        Ok(Host {
            url: url.clone(),
            admin: metrics.trim_end_matches("/metrics").to_owned(),
            client: Client::new(),
            process,
            config: file,
        })
    }

    /// Puts another configuration into the file, as an editor does: whoever reads it sees all or none.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn rewrite(&self, config: &str) -> Result<()> {
        let path = self.config.path();
        let beside = path.with_extension("new");
        std::fs::write(&beside, config)?;
        Ok(std::fs::rename(&beside, path)?)
    }

    /// A chat request that asks for the explain headers; not sent yet.
    pub fn request(&self, session: &str, text: &str) -> RequestBuilder {
        self.request_with(
            session,
            &json!({
                "model": "demo", "max_tokens": 4,
                "messages": [{ "role": "user", "content": text }],
            }),
        )
    }

    /// The same with a body.
    pub fn request_with(&self, session: &str, body: &Value) -> RequestBuilder {
        self.client
            .post(format!("{}/v1/chat/completions", self.url))
            .header("x-session-id", session)
            .header("x-pointsman-explain", "1")
            .json(body)
    }

    /// Sends one turn and reads the answer.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn chat(&self, session: &str, text: &str) -> Result<Answer> {
        Answer::read(self.request(session, text).send().await?).await
    }

    /// The metrics now.
    ///
    /// # Errors
    /// If the admin side does not answer.
    pub async fn metrics(&self) -> Result<Metrics> {
        let page = self
            .client
            .get(format!("{}/metrics", self.admin))
            .send()
            .await?;
        Ok(Metrics::parse(&page.error_for_status()?.text().await?))
    }

    /// Waits until the metrics are as wanted; they tell nobody when they change.
    ///
    /// # Errors
    /// If they are not within the time; with what they were last.
    pub async fn metrics_until(
        &self,
        within: Duration,
        wanted: impl Fn(&Metrics) -> bool,
    ) -> Result<Metrics> {
        let mut last = None;
        let wait = async {
            let mut look = tokio::time::interval(Duration::from_millis(10));
            loop {
                look.tick().await;
                let metrics = self.metrics().await?;
                if wanted(&metrics) {
                    return anyhow::Ok(metrics);
                }
                last = Some(metrics);
            }
        };
        match tokio::time::timeout(within, wait).await {
            Ok(metrics) => metrics,
            Err(_) => anyhow::bail!("the metrics are not as wanted after {within:?}: {last:#?}"),
        }
    }
}

impl Answer {
    /// Reads a response to its end.
    ///
    /// # Errors
    /// If the body breaks off.
    pub async fn read(response: Response) -> Result<Answer> {
        let header = |name| {
            let value = response.headers().get(name);
            value
                .and_then(|v| v.to_str().ok())
                .unwrap_or_default()
                .to_owned()
        };
        let (target, reason) = (header("x-pointsman-target"), header("x-pointsman-reason"));
        let (status, rank) = (response.status().as_u16(), header("x-engine-rank"));
        let body = response.bytes().await?;
        Ok(Answer {
            status,
            target,
            reason,
            rank,
            body: serde_json::from_slice(&body).unwrap_or(Value::Null),
        })
    }
}
