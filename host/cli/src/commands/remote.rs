//! The client's side of the admin API: `--admin URL --token-file FILE`.

use super::print_json;
use crate::admin::read_token;
use anyhow::{Context, Result, bail};
use reqwest::{Client, ClientBuilder, Method, RequestBuilder, StatusCode, Url};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::runtime::Runtime;

/// The host may have to compile a large policy.
const PATIENCE: Duration = Duration::from_secs(900);
/// To say what is.
const SOON: Duration = Duration::from_secs(30);
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

/// Which host, if a running one is meant. (`Option<Remote>` would still want both.)
#[derive(clap::Args)]
pub struct MaybeRemote {
    /// The host's admin address
    #[arg(long, value_name = "URL", requires = "token_file")]
    admin: Option<Url>,
    /// The file with the token of its admin API
    #[arg(long, value_name = "FILE", requires = "admin")]
    token_file: Option<PathBuf>,
}

impl MaybeRemote {
    /// None: no host is named.
    pub fn named(&self) -> Option<Remote> {
        let (admin, token_file) = self.admin.clone().zip(self.token_file.clone())?;
        Some(Remote { admin, token_file })
    }
}

/// What the host said: its JSON, and whether that is what was wanted.
pub struct Said {
    ok: bool,
    value: Value,
}

impl Remote {
    /// Of a path of the API.
    pub fn url(&self, path: &str) -> Option<Url> {
        let mut url = self.admin.clone();
        (url.path_segments_mut().ok()?)
            .pop_if_empty()
            .extend(["api", "v1"])
            .extend(path.split('/'));
        Some(url)
    }

    /// Asks for what is at a path of the API.
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

    /// Fetches a file, however long, into a new one.
    pub fn download(&self, path: &str, to: &Path) -> Result<()> {
        let token = read_token(&self.token_file)?;
        let url = self.at(path)?;
        runtime()?.block_on(async {
            let client = client(|client| client.read_timeout(SOON))?;
            let request = client.get(url.clone()).bearer_auth(token).send();
            let mut response = request.await?.error_for_status()?;
            let cannot = || format!("cannot write {}", to.display());
            let mut file = File::create_new(to).with_context(cannot)?;
            while let Some(piece) = response.chunk().await? {
                file.write_all(&piece).with_context(cannot)?;
            }
            Ok(())
        })
    }

    fn at(&self, path: &str) -> Result<Url> {
        self.url(path).with_context(|| {
            let admin = &self.admin;
            format!("--admin {admin}: wanted the admin address, as in http://127.0.0.1:8081")
        })
    }

    /// The same, at a URL of the API.
    pub fn send(
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
        let longest = if method == Method::GET {
            SOON
        } else {
            PATIENCE
        };
        runtime()?.block_on(async {
            let client = client(|client| client.timeout(longest))?;
            let request = with(client.request(method, url).bearer_auth(token));
            let unreachable = || format!("the host at {} does not answer", self.admin);
            let response = request.send().await.with_context(unreachable)?;
            let status = response.status();
            let body = response.bytes().await.with_context(unreachable)?;
            Ok((status, body.into()))
        })
    }
}

fn runtime() -> Result<Runtime> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().context("no runtime")
}

/// A token goes to its host, and nowhere else.
fn client(patience: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Result<Client> {
    let client = (Client::builder().no_proxy())
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT);
    patience(client).build().context("no HTTP client")
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
    /// Its JSON, if that is what was wanted.
    pub fn wanted(self) -> Result<Value> {
        if self.ok {
            return Ok(self.value);
        }
        let error = field(&self.value, "error");
        bail!("{}: {}", text(error, "cause"), text(error, "remedy"))
    }

    /// Prints it. Exit status 0 only if it is what was wanted.
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

/// A field of an answer, or null.
pub fn field<'a>(value: &'a Value, name: &str) -> &'a Value {
    value.get(name).unwrap_or(&Value::Null)
}

/// A text in an answer, or "?".
pub fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    field(value, name).as_str().unwrap_or("?")
}

/// A share in per cent, to a tenth: never 0 where there is one, nor 100 where one is missing.
pub fn some(part: u64, of: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a share for people")]
    let share = 1000.0 * part as f64 / of.max(1) as f64;
    let tenths = match part {
        0 => 0.0,
        part if part == of => 1000.0,
        _ => share.round().clamp(1.0, 999.0),
    };
    format!("{:.1}", tenths / 10.0)
}
