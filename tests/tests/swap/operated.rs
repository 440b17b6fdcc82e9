//! A host with an admin API, and its operator.

use anyhow::{Context, Result, ensure};
use pointsman_tests::{Engine, Host, pointsman};
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;
use tempfile::TempDir;

pub const TOKEN: &str = "c2VjcmV0";
const SOON: Duration = Duration::from_secs(30);

pub struct Operated {
    pub host: Host,
    /// for files of the test; also holds the token and the code cache
    pub folder: TempDir,
    client: Client,
}

/// A file with a token in it.
pub fn token_file(folder: &TempDir, mode: u32, token: &str) -> Result<PathBuf> {
    let path = folder.path().join("admin.token");
    let mut file = (std::fs::OpenOptions::new().create(true).write(true))
        .truncate(true)
        .mode(mode)
        .open(&path)?;
    writeln!(file, "{token}")?;
    Ok(path)
}

/// The same policy as another file: a custom section at its end, so that nobody has its code yet.
pub fn another(wasm: &Path, number: u8) -> Result<Vec<u8>> {
    let mut wasm = std::fs::read(wasm)?;
    wasm.extend([0, 3, 1, b'n', number]);
    Ok(wasm)
}

/// What to configure. The time limit is one that a machine which is elsewhere for a moment does not exceed
/// for a policy that does nothing wrong.
pub fn config(folder: &TempDir, policy: &str, engines: &[&Engine]) -> String {
    let endpoints: String = (engines.iter())
        .map(|e| {
            let (name, url, ranks) = (&e.name, &e.url, e.ranks);
            format!("{{ name = \"{name}\", url = \"{url}\", ranks = {ranks} }},")
        })
        .collect();
    let folder = folder.path().display();
    format!(
        "[listen]\naddress = \"127.0.0.1:0\"\nthreads = 2\n\
         [admin]\naddress = \"127.0.0.1:0\"\ntoken_file = \"{folder}/admin.token\"\n\
         [policy]\nuse = \"{policy}\"\nfallback = \"least-load\"\n\
         [cache]\nfolder = \"{folder}/cache\"\n\
         [[pool]]\nname = \"main\"\ndialect = \"vllm\"\nendpoints = [{endpoints}]\n"
    )
}

impl Operated {
    pub async fn start(policy: &str, engines: &[&Engine]) -> Result<Operated> {
        Operated::start_in(tempfile::tempdir()?, policy, engines).await
    }

    pub async fn start_in(folder: TempDir, policy: &str, engines: &[&Engine]) -> Result<Operated> {
        Operated::start_changed(folder, policy, engines, |_| {}).await
    }

    /// With something about the command changed.
    pub async fn start_changed(
        folder: TempDir,
        policy: &str,
        engines: &[&Engine],
        change: impl FnOnce(&mut tokio::process::Command),
    ) -> Result<Operated> {
        token_file(&folder, 0o600, TOKEN)?;
        let host = Host::start_changed(&config(&folder, policy, engines), change).await?;
        Ok(Operated::of(host, folder))
    }

    /// New policies are not tried on the last decisions: they fail while they decide.
    pub async fn start_untried(policy: &str, engines: &[&Engine]) -> Result<Operated> {
        let folder = tempfile::tempdir()?;
        token_file(&folder, 0o600, TOKEN)?;
        let config = config(&folder, policy, engines);
        let host = Host::start_config(&format!("[recorder]\nkeep = 0\n{config}")).await?;
        Ok(Operated::of(host, folder))
    }

    /// The operator of a host whose token is in the folder.
    pub fn of(host: Host, folder: TempDir) -> Operated {
        Operated {
            host,
            folder,
            client: Client::new(),
        }
    }

    /// Without the token.
    pub fn anybody(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("{}/api/v1/{path}", self.host.admin);
        self.client.request(method, url)
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.anybody(method, path).bearer_auth(TOKEN)
    }

    pub async fn get(&self, path: &str) -> Result<Value> {
        read(self.request(Method::GET, path)).await?.ok()
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Said> {
        read(self.request(Method::POST, path).json(body)).await
    }

    /// A built-in policy.
    pub async fn swap(&self, policy: &str) -> Result<Said> {
        self.post("policy/swap", &json!({ "policy": policy })).await
    }

    /// A `.wasm`, with a configuration.
    pub async fn upload(&self, wasm: Vec<u8>, config: &str) -> Result<Said> {
        let path = format!("policy/swap?origin=sent.wasm&config={config}");
        let request = self.request(Method::POST, &path);
        read(
            request
                .header("content-type", "application/wasm")
                .body(wasm),
        )
        .await
    }

    pub async fn status(&self) -> Result<Value> {
        self.get("policy").await
    }

    /// Waits until the status is as wanted; it tells nobody when it changes.
    pub async fn status_until(&self, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut last = Value::Null;
        let wait = async {
            let mut look = tokio::time::interval(Duration::from_millis(10));
            loop {
                look.tick().await;
                last = self.status().await?;
                if wanted(&last) {
                    return anyhow::Ok(last.clone());
                }
            }
        };
        match tokio::time::timeout(SOON, wait).await {
            Ok(status) => status,
            Err(_) => anyhow::bail!("the status is not as wanted: {last:#}"),
        }
    }

    /// `pointsman policy ARGS` at this host.
    pub async fn policy(&self, args: &[&str]) -> Result<Output> {
        let output = tokio::process::Command::new(pointsman())
            .arg("policy")
            .args(args)
            .args(["--admin", &self.host.admin, "--token-file"])
            .arg(self.folder.path().join("admin.token"))
            .output();
        output.await.context("pointsman policy")
    }
}

/// An answer of the API.
#[derive(Debug)]
pub struct Said {
    pub status: u16,
    pub body: Value,
}

impl Said {
    pub fn ok(self) -> Result<Value> {
        ensure!(self.status == 200, "{}: {:#}", self.status, self.body);
        Ok(self.body)
    }

    /// The stage at which it was refused.
    pub fn stage(&self) -> &str {
        self.body["error"]["stage"].as_str().unwrap_or("none")
    }

    pub fn cause(&self) -> &str {
        self.body["error"]["cause"].as_str().unwrap_or("none")
    }
}

pub async fn read(request: RequestBuilder) -> Result<Said> {
    let response = request.send().await?;
    let status = response.status().as_u16();
    let body = response.bytes().await?;
    Ok(Said {
        status,
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
    })
}
