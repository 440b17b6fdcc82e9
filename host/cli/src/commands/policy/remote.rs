//! `pointsman policy list|load|swap|rollback|status --admin URL --token-file FILE`: a running host's
//! policies. Exit status 0 only when the host did what was wanted.

use crate::admin::read_token;
use crate::commands::print_json;
use crate::policies::Named;
use anyhow::{Context, Result, bail};
use reqwest::{Client, Method, RequestBuilder, StatusCode, Url};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The host may have to compile a large policy.
const PATIENCE: Duration = Duration::from_secs(900);
/// To reach the host.
const CONNECT: Duration = Duration::from_secs(5);

/// Which host.
#[derive(clap::Args)]
pub struct Remote {
    /// The host's admin address
    #[arg(long, value_name = "URL")]
    admin: Url,
    /// The file with the token of its admin API
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
}

/// Which policy.
#[derive(clap::Args)]
pub struct Wanted {
    /// A built-in name or the path of a .wasm, which is sent to the host
    policy: String,
    /// Its configuration
    #[arg(long, value_name = "JSON", default_value = "{}")]
    config: String,
    /// The SHA-256 that the .wasm must have
    #[arg(long, value_name = "HEX", default_value = "")]
    sha256: String,
    #[command(flatten)]
    remote: Remote,
}

/// What the host said: its JSON, and whether that is what was wanted.
pub struct Said {
    ok: bool,
    value: Value,
}

/// The policies of the host's binary, and the one that decides.
pub fn list(remote: &Remote, as_json: bool) -> Result<ExitCode> {
    let said = remote.ask(Method::GET, "policies", |request| request)?;
    said.show(as_json, |value| {
        for policy in field(value, "policies").as_array().into_iter().flatten() {
            let mark = if field(policy, "decides") == true {
                '*'
            } else {
                ' '
            };
            println!(
                "{mark} {:<26}{}",
                text(policy, "name"),
                text(policy, "about")
            );
        }
        show_status(field(value, "now"));
    })
}

/// What decides now.
pub fn status(remote: &Remote, as_json: bool) -> Result<ExitCode> {
    let said = remote.ask(Method::GET, "policy", |request| request)?;
    said.show(as_json, show_status)
}

/// Brings the policy before this one back.
pub fn rollback(remote: &Remote, as_json: bool) -> Result<ExitCode> {
    let said = remote.ask(Method::POST, "policy/rollback", |request| request)?;
    said.show(as_json, show_status)
}

/// Puts a policy in place.
pub fn swap(wanted: &Wanted, as_json: bool) -> Result<ExitCode> {
    wanted.send("policy/swap")?.show(as_json, |value| {
        show_canary(field(value, "canary"));
        show_status(value);
    })
}

/// Loads a policy on the host, and leaves the running one in place.
pub fn load(wanted: &Wanted, as_json: bool) -> Result<ExitCode> {
    wanted.send("policy/load")?.show(as_json, |value| {
        let (name, version) = (text(value, "name"), text(value, "version"));
        println!("{name} {version} can be used there: swap it in with `pointsman policy swap`");
        show_canary(field(value, "canary"));
    })
}

impl Wanted {
    pub fn send(&self, path: &str) -> Result<Said> {
        let config: Value = serde_json::from_str(&self.config)
            .with_context(|| format!("--config {:?}: wanted JSON", self.config))?;
        match Named::parse(&self.policy, Path::new(""))? {
            Named::BuiltIn(policy) => {
                let wanted = json!({
                    "policy": policy.name, "config": config, "sha256": self.sha256
                });
                (self.remote).ask(Method::POST, path, |request| request.json(&wanted))
            }
            Named::File(file) => {
                let wasm = Named::File(file.clone()).wasm()?.into_owned();
                let origin = file.file_name().unwrap_or(file.as_os_str());
                let query = [
                    ("origin", origin.to_string_lossy().into_owned()),
                    ("config", config.to_string()),
                    ("sha256", self.sha256.clone()),
                ];
                let mut url = (self.remote.url(path)).context("--admin: no URL to add to")?;
                url.query_pairs_mut().extend_pairs(query);
                self.remote.send(Method::POST, url, |request| {
                    request
                        .header("content-type", "application/wasm")
                        .body(wasm)
                })
            }
        }
    }
}

impl Remote {
    fn url(&self, path: &str) -> Option<Url> {
        let mut url = self.admin.clone();
        (url.path_segments_mut().ok()?)
            .pop_if_empty()
            .extend(["api", "v1"])
            .extend(path.split('/'));
        Some(url)
    }

    /// Asks the host.
    pub fn ask(
        &self,
        method: Method,
        path: &str,
        with: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> Result<Said> {
        self.send(method, self.at(path)?, with)
    }

    /// Fetches what is no JSON, or fails with what the host says instead.
    pub fn fetch(&self, path: &str) -> Result<Vec<u8>> {
        let (status, body) = self.exchange(Method::GET, self.at(path)?, |request| request)?;
        if status == StatusCode::OK {
            return Ok(body);
        }
        let value = serde_json::from_slice(&body).unwrap_or_else(|_| no_api(status));
        let error = field(&value, "error");
        bail!("{}: {}", text(error, "cause"), text(error, "remedy"))
    }

    fn at(&self, path: &str) -> Result<Url> {
        self.url(path).with_context(|| {
            let admin = &self.admin;
            format!("--admin {admin}: wanted the admin address, as in http://127.0.0.1:8081")
        })
    }

    fn send(
        &self,
        method: Method,
        url: Url,
        with: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> Result<Said> {
        let (status, body) = self.exchange(method, url, with)?;
        Ok(Said {
            ok: status == StatusCode::OK,
            value: serde_json::from_slice(&body).unwrap_or_else(|_| no_api(status)),
        })
    }

    fn exchange(
        &self,
        method: Method,
        url: Url,
        with: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> Result<(StatusCode, Vec<u8>)> {
        let token = read_token(&self.token_file)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("no runtime")?;
        runtime.block_on(async {
            // A token goes to its host, and nowhere else.
            let client = (Client::builder().no_proxy())
                .redirect(reqwest::redirect::Policy::none())
                .connect_timeout(CONNECT)
                .timeout(PATIENCE)
                .build()
                .context("no HTTP client")?;
            let request = with(client.request(method, url).bearer_auth(token));
            let unreachable = || format!("the host at {} does not answer", self.admin);
            let response = request.send().await.with_context(unreachable)?;
            let status = response.status();
            let body = response.bytes().await.with_context(unreachable)?;
            Ok((status, body.into()))
        })
    }
}

/// Whoever answered has no such API.
fn no_api(status: StatusCode) -> Value {
    json!({ "error": {
        "stage": "request",
        "cause": format!("there is no admin API at this address ({status})"),
        "remedy": "use the host's [admin] address, and set [admin] token_file there",
    } })
}

impl Said {
    pub fn show(&self, as_json: bool, show: impl FnOnce(&Value)) -> Result<ExitCode> {
        if as_json {
            print_json(&self.value)?;
        } else if self.ok {
            show(&self.value);
        } else {
            let error = field(&self.value, "error");
            let (stage, cause) = (text(error, "stage"), text(error, "cause"));
            eprintln!("pointsman: refused at stage {stage}: {cause}");
            eprintln!("    remedy: {}", text(error, "remedy"));
        }
        Ok(if self.ok {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

/// What a policy would have said to the last decisions.
pub fn show_canary(value: &Value) {
    let number = |name| field(value, name).as_u64().unwrap_or(0);
    let share = 100.0 * field(value, "changed_share").as_f64().unwrap_or(0.0);
    println!(
        "tried on the last {} decisions: {} would change ({share:.1} %)",
        number("decisions"),
        number("changed")
    );
}

/// What decides.
pub fn show_status(value: &Value) {
    let (name, version) = (text(value, "name"), text(value, "version"));
    println!(
        "{name} {version} decides, generation {}",
        field(value, "generation")
    );
    println!("    from      {}", text(value, "origin"));
    println!("    sha256    {}", text(value, "digest"));
    println!(
        "    before    {}",
        field(value, "previous").as_str().unwrap_or("none")
    );
    println!("    last      {}", text(value, "last"));
    if let Some(file) = field(value, "file").as_str() {
        println!("    file      {file}");
    }
    if let (Some(until), Some(now)) = (
        field(value, "paused_until_ms").as_u64(),
        field(value, "now_ms").as_u64(),
    ) {
        let left = until.saturating_sub(now);
        println!("    paused    the fallback decides for {left} ms more");
    }
}

/// A part of what the host said.
pub fn field<'a>(value: &'a Value, name: &str) -> &'a Value {
    value.get(name).unwrap_or(&Value::Null)
}

/// A text of it.
pub fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    field(value, name).as_str().unwrap_or("?")
}
