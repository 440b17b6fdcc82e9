//! Engines' own admin endpoints: server information, state, profiling, metrics.

mod reported;

use std::time::Duration;

use reqwest::{Method, StatusCode, Url};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::driver::{Deployment, Driver, Failure, Knob, TRACE_BYTES};
use crate::reference;

/// Of an answer, bytes; a page of metrics of 1,024 ranks fits.
const ANSWER_BYTES: usize = 16 << 20;
/// For an answer; whoever calls has a deadline of its own (`Desk`), this ends what it has given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// To write a trace. Its place is noted also where nobody waits for it any more.
const PROFILE_PATIENCE: Duration = Duration::from_secs(120);
/// Of what an engine says of a profile, bytes: a place, most often.
const PROFILE_BYTES: usize = 64 << 10;
/// Of an engine's error that is passed on, characters.
const ERROR_CHARS: usize = 300;

/// What an engine can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpDialect {
    /// The reference engine: all of it, with ranges.
    Reference,
    /// SGLang: what `/server_info` shows can be read, what `/set_internal_state` takes can be set.
    Sglang,
    /// vLLM and ATOM: profiling and metrics; nothing can be set.
    Vllm,
}

/// Speaks HTTP/1.1 to one engine. Metrics are fetched when a number is asked for, and not otherwise.
#[derive(Debug)]
pub struct HttpDriver {
    base: Url,
    dialect: HttpDialect,
    client: reqwest::Client,
    runtime: Runtime,
    /// A window may be open that nobody knows of: a start or a stop went out, and no answer came.
    in_doubt: bool,
}

/// No answer came.
struct Silence {
    why: Failure,
    /// The engine may do all the same what it was asked for.
    was_sent: bool,
}

impl HttpDriver {
    /// For the engine at this URL. Nothing is sent yet.
    ///
    /// # Errors
    /// Not an http URL.
    pub fn new(url: &str, dialect: HttpDialect) -> Result<Self, Failure> {
        let base = Url::parse(url).ok().filter(|url| url.scheme() == "http");
        let base = base.ok_or_else(|| {
            Failure::unavailable(format!("engine: wanted http://HOST:PORT, found {url}"))
        })?;
        let client = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(2))
            .redirect(reqwest::redirect::Policy::none())
            .pool_idle_timeout(Duration::from_secs(3))
            .no_proxy()
            .build()
            .map_err(Failure::unavailable)?;
        let runtime = Builder::new_current_thread().enable_all().build();
        Ok(Self {
            base,
            dialect,
            client,
            runtime: runtime.map_err(Failure::unavailable)?,
            in_doubt: false,
        })
    }

    fn call(
        &mut self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Vec<u8>, Failure> {
        self.call_within((PATIENCE, ANSWER_BYTES), method, path, body)
    }

    fn call_within(
        &mut self,
        bounds: (Duration, usize),
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Vec<u8>, Failure> {
        self.settle()?;
        self.ask(bounds, method, path, body)
            .unwrap_or_else(|silence| Err(silence.why))
    }

    /// Ends what may have begun: an engine that was hung runs a start also when nobody waits for it any
    /// more, and would record for ever. What it refused was somebody else's, and is left alone.
    fn settle(&mut self) -> Result<(), Failure> {
        if !self.in_doubt {
            return Ok(());
        }
        // Once more where there was nothing to stop: a start that comes late may run beside the first one.
        if self.stop()?.is_err() {
            let _second = self.stop()?;
        }
        Ok(())
    }

    /// What the engine answered to a stop; none: it may have a window open, or not.
    fn stop(&mut self) -> Result<Result<Vec<u8>, Failure>, Failure> {
        let bounds = (PROFILE_PATIENCE, ANSWER_BYTES);
        self.ask_to_profile(bounds, "/stop_profile")
    }

    /// A start or a stop: doubt is what remains of one without an answer.
    fn ask_to_profile(
        &mut self,
        bounds: (Duration, usize),
        path: &str,
    ) -> Result<Result<Vec<u8>, Failure>, Failure> {
        match self.ask(bounds, Method::POST, path, None) {
            Ok(said) => {
                self.in_doubt = false;
                Ok(said)
            }
            Err(silence) => {
                self.in_doubt |= silence.was_sent;
                Err(silence.why)
            }
        }
    }

    /// What the engine answered.
    fn ask(
        &self,
        (patience, most): (Duration, usize),
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Result<Vec<u8>, Failure>, Silence> {
        let mut url = self.base.clone();
        let (path, query) = match path.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (path, None),
        };
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        url.set_query(query);
        let what = format!("{method} {url}");
        let mut request = self.client.request(method, url).timeout(patience);
        if let Some(body) = body {
            request = request.json(body);
        }
        let silent = |error: reqwest::Error| Silence {
            was_sent: !error.is_connect() && !error.is_builder(),
            why: no_answer(&what, &error),
        };
        let answer = self.runtime.block_on(async {
            let mut response = request.send().await.map_err(silent)?;
            let status = response.status();
            let mut body = Vec::new();
            while let Some(chunk) = response.chunk().await.map_err(silent)? {
                if body.len() + chunk.len() > most {
                    let why = format!("{what}: the answer has more than {most} bytes");
                    return Ok(Err(Failure::Unavailable(why)));
                }
                body.extend_from_slice(&chunk);
            }
            Ok(Ok((status, body)))
        });
        let (status, body) = match answer? {
            Ok(answer) => answer,
            Err(failure) => return Ok(Err(failure)),
        };
        Ok(match status {
            status if status.is_success() => Ok(body),
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Err(Failure::Unknown),
            status => {
                let said = String::from_utf8_lossy(&body);
                let said: String = said.chars().take(ERROR_CHARS).collect();
                Err(Failure::Unavailable(format!("{what}: {status}: {said}")))
            }
        })
    }

    fn info(&mut self) -> Result<Value, Failure> {
        let body = self.call(Method::GET, "/server_info", None)?;
        let wrong = |e| Failure::unavailable(format!("{}server_info: {e}", self.base));
        serde_json::from_slice(&body).map_err(wrong)
    }
}

/// The whole chain of causes.
fn no_answer(what: &str, error: &reqwest::Error) -> Failure {
    let mut text = format!("{what}: {error}");
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    Failure::Unavailable(text)
}

impl Driver for HttpDriver {
    fn ranks(&mut self) -> Result<u32, Failure> {
        let ranks = self.info()?.get("dp_size").and_then(Value::as_u64);
        ranks
            .and_then(|n| u32::try_from(n).ok())
            .ok_or(Failure::Unknown)
    }

    fn knobs(&mut self, _rank: u32) -> Result<Vec<Knob>, Failure> {
        if self.dialect != HttpDialect::Reference {
            // Their ranges are nowhere to be read.
            return Ok(Vec::new());
        }
        let info = self.info()?;
        Ok(reference::knobs(
            info.get("server_args").unwrap_or(&Value::Null),
        ))
    }

    fn knob_get(&mut self, rank: u32, name: &str) -> Result<i64, Failure> {
        if self.dialect == HttpDialect::Reference {
            let knobs = self.knobs(rank)?;
            let knob = knobs.into_iter().find(|knob| knob.name == name);
            return knob.map(|knob| knob.value).ok_or(Failure::Unknown);
        }
        let info = self.info()?;
        let state = info
            .get("internal_states")
            .and_then(|all| all.get(rank as usize));
        let value = (info.get(name))
            .or_else(|| info.get("server_args")?.get(name))
            .or_else(|| state?.get(name));
        let value = value.ok_or(Failure::Unknown)?;
        let number = value.as_i64().or_else(|| value.as_bool().map(i64::from));
        number.ok_or_else(|| Failure::unavailable(format!("`{name}` is {value}: no whole number")))
    }

    fn knob_set(&mut self, _rank: Option<u32>, name: &str, value: i64) -> Result<(), Failure> {
        let value = match self.dialect {
            HttpDialect::Reference => match reference::write(name, value) {
                Some(written) => written.map_err(Failure::Unavailable)?,
                None => return Err(Failure::Unknown),
            },
            HttpDialect::Sglang => json!(value),
            HttpDialect::Vllm => return Err(Failure::Unknown),
        };
        let body = json!({ "server_args": { name: value } });
        let answer = self.call(Method::POST, "/set_internal_state", Some(&body))?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        // SGLang answers with one object a rank, and with 200 also where it refuses.
        let refused = |one: &Value| one.get("updated") == Some(&Value::Bool(false));
        let refuses = match &answer {
            Value::Array(all) => all.iter().any(refused),
            one => refused(one),
        };
        if refuses {
            return Err(Failure::unavailable(format!(
                "the engine does not take `{name}`"
            )));
        }
        Ok(())
    }

    fn stat(&mut self, rank: u32, name: &str) -> Result<f64, Failure> {
        let page = self.call(Method::GET, "/metrics", None)?;
        sample(&String::from_utf8_lossy(&page), rank, name).ok_or(Failure::Unknown)
    }

    fn profile_start(&mut self) -> Result<(), Failure> {
        self.settle()?;
        let bounds = (PATIENCE, ANSWER_BYTES);
        self.ask_to_profile(bounds, "/start_profile")?.map(drop)
    }

    fn profile_stop(&mut self) -> Result<String, Failure> {
        let mut said = self.stop()??;
        said.truncate(PROFILE_BYTES);
        Ok(String::from_utf8_lossy(&said).into_owned())
    }

    fn profile_trace(&mut self, rank: u32) -> Result<Vec<u8>, Failure> {
        if self.dialect != HttpDialect::Reference {
            // SGLang, vLLM and ATOM write to a disk of their own, and hand nothing out.
            return Err(Failure::Unknown);
        }
        let bounds = (PROFILE_PATIENCE, TRACE_BYTES);
        let path = format!("/profile/trace?rank={rank}");
        self.call_within(bounds, Method::GET, &path, None)
    }

    fn deployment(&mut self) -> Result<Deployment, Failure> {
        match self.dialect {
            HttpDialect::Reference => Ok(reported::reference(&self.info()?)),
            HttpDialect::Sglang => Ok(reported::sglang(&self.info()?)),
            HttpDialect::Vllm => Err(Failure::Unknown),
        }
    }
}

impl Drop for HttpDriver {
    fn drop(&mut self) {
        if let Err(error) = self.settle() {
            tracing::warn!(%error, "an engine may have a profiling window open");
        }
    }
}

/// The first sample of this name for this rank, or, of an engine that has no ranks, of rank 0.
/// `name` may bring labels along that shall be there: `name{label="value"}`.
fn sample(page: &str, rank: u32, name: &str) -> Option<f64> {
    let (name, wanted) = name.split_once('{').unwrap_or((name, ""));
    let wanted = wanted.trim_end_matches('}');
    let of_rank = |labels: &str| {
        let mut ranks = labels.split(',').filter_map(|label| {
            let (key, value) = label.split_once('=')?;
            matches!(key.trim(), "engine" | "dp_rank").then(|| value.trim_matches('"'))
        });
        match ranks.next() {
            Some(of) => of == rank.to_string(),
            None => rank == 0,
        }
    };
    page.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => rest.rsplit_once('}')?,
            None => ("", rest.strip_prefix(' ')?),
        };
        let value = value.split_whitespace().next()?.parse().ok()?;
        let has_wanted = wanted.split(',').all(|label| labels.contains(label.trim()));
        (has_wanted && of_rank(labels)).then_some(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_by_name_rank_and_labels() {
        let page = "# HELP load x\nload{engine=\"0\",kind=\"a\"} 1\nload{engine=\"1\",kind=\"a\"} 2.5\n\
                    load{engine=\"1\",kind=\"b\"} 3\nloads 4 1700000000\nsg{dp_rank=\"1\"} 5\nodd{x\n";
        let cases = [
            (0, "load", Some(1.0)),
            (1, "load", Some(2.5)),
            (1, "load{kind=\"b\"}", Some(3.0)),
            (1, "load{kind=\"c\"}", None),
            (2, "load", None),
            (0, "loads", Some(4.0)),
            (1, "loads", None),
            (1, "sg", Some(5.0)),
            (0, "odd", None),
            (0, "loa", None),
        ];
        for (rank, name, value) in cases {
            assert_eq!(sample(page, rank, name), value, "{name} of {rank}");
        }
    }
}
