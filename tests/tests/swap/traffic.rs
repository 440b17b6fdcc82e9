//! Clients that go on while the policy is replaced, and notice whatever is wrong.

use crate::operated::Operated;
use anyhow::{Context, Result, ensure};
use pointsman_tests::Host;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// For the traffic to notice a replacement.
const SOON: Duration = Duration::from_secs(30);

/// What clients and test tell each other.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// replacements so far
    swaps: AtomicU64,
    chats: AtomicU64,
    /// streams that were open during at least one replacement
    crossed: AtomicU64,
    /// answers that the fallback gave instead of a policy
    fallbacks: AtomicU64,
    /// answers by policy
    policies: std::sync::Mutex<BTreeMap<String, u64>>,
}

pub struct Traffic {
    shared: Arc<Shared>,
    tasks: JoinSet<Result<()>>,
    /// who decided last
    last: watch::Receiver<String>,
}

/// What happened; any failure is an error of [`Traffic::stop`] instead.
#[derive(Debug)]
pub struct Seen {
    /// streams that were open during at least one replacement
    pub crossed: u64,
    /// answers that the fallback gave instead of a policy
    pub fallbacks: u64,
    /// answers by policy
    pub policies: BTreeMap<String, u64>,
}

/// One client of a session of its own.
#[derive(Clone)]
struct Client {
    host: Arc<Operated>,
    session: String,
    shared: Arc<Shared>,
    last: watch::Sender<String>,
    /// every answer must come from where the session lives
    at_home: bool,
}

impl Traffic {
    /// `at_home`: the policies keep sessions where they are.
    pub fn start(host: &Arc<Operated>, chats: usize, streams: usize, at_home: bool) -> Traffic {
        let shared = Arc::<Shared>::default();
        let (sender, last) = watch::channel(String::new());
        let client = |session: String| Client {
            host: host.clone(),
            session,
            shared: shared.clone(),
            last: sender.clone(),
            at_home,
        };
        let mut tasks = JoinSet::new();
        for n in 0..chats {
            tasks.spawn(client(format!("chat-{n}")).chats());
        }
        for n in 0..streams {
            tasks.spawn(client(format!("stream-{n}")).streams());
        }
        Traffic {
            shared,
            tasks,
            last,
        }
    }

    /// To be called when a replacement was answered.
    pub fn swapped(&self) {
        self.shared.swaps.fetch_add(1, Relaxed);
    }

    /// Waits until a client was served by this policy.
    pub async fn sees(&mut self, policy: &str) -> Result<()> {
        let seen = self.last.wait_for(|last| last == policy);
        match tokio::time::timeout(SOON, seen).await {
            Ok(seen) => drop(seen.context("the traffic has ended")?),
            Err(_) => anyhow::bail!("nobody was served by {policy}"),
        }
        Ok(())
    }

    /// Waits for that many more chats.
    pub async fn more(&self, chats: u64) -> Result<()> {
        let wanted = self.shared.chats.load(Relaxed) + chats;
        let wait = async {
            let mut look = tokio::time::interval(Duration::from_millis(5));
            while self.shared.chats.load(Relaxed) < wanted {
                look.tick().await;
            }
        };
        (tokio::time::timeout(SOON, wait).await).context("the traffic stands still")
    }

    /// Waits for the first thing that is wrong.
    pub async fn ends(mut self) -> Result<()> {
        let ended = tokio::time::timeout(SOON, self.tasks.join_next()).await;
        ended.context("nothing is wrong")?.context("no clients")??
    }

    /// Lets every client finish what it does.
    ///
    /// # Errors
    /// The first thing that was wrong.
    pub async fn stop(mut self) -> Result<Seen> {
        self.shared.stop.store(true, Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok(Seen {
            crossed: self.shared.crossed.load(Relaxed),
            fallbacks: self.shared.fallbacks.load(Relaxed),
            policies: std::mem::take(&mut self.shared.policies.lock().unwrap()),
        })
    }
}

impl Client {
    async fn chats(self) -> Result<()> {
        let mut home = None;
        while !self.shared.stop.load(Relaxed) {
            let request = self.host.host.request(&self.session, "hello");
            let response = request.send().await.context("a chat failed")?;
            self.check(&response, &mut home)?;
            let body: Value = response.json().await.context("a chat broke")?;
            ensure!(body["choices"][0]["finish_reason"] == "length", "{body}");
            self.shared.chats.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    async fn streams(self) -> Result<()> {
        let mut home = None;
        let wanted = words(&self.host.host, &self.session, false).await?.1;
        while !self.shared.stop.load(Relaxed) {
            let before = self.shared.swaps.load(Relaxed);
            let (response, text) = words(&self.host.host, &self.session, true).await?;
            ensure!(text == wanted, "wanted {wanted:?}, found {text:?}");
            self.check(&response, &mut home)?;
            if self.shared.swaps.load(Relaxed) > before {
                self.shared.crossed.fetch_add(1, Relaxed);
            }
        }
        Ok(())
    }

    fn check(&self, response: &reqwest::Response, home: &mut Option<String>) -> Result<()> {
        let header = |name| {
            let value = response.headers().get(name);
            value.and_then(|v| v.to_str().ok()).unwrap_or_default()
        };
        ensure!(response.status() == 200, "status {}", response.status());
        let (policy, target) = (header("x-pointsman-policy"), header("x-pointsman-target"));
        ensure!(!policy.is_empty(), "an answer without a policy");
        let reason = header("x-pointsman-reason");
        if reason.starts_with("fallback") {
            self.shared.fallbacks.fetch_add(1, Relaxed);
        }
        if self.at_home {
            ensure!(!reason.starts_with("fallback"), "{policy}: {reason}");
            let home = home.get_or_insert_with(|| target.to_owned());
            ensure!(
                home == target,
                "{} lived on {home}, went to {target}",
                self.session
            );
        }
        *(self.shared.policies.lock().unwrap())
            .entry(policy.to_owned())
            .or_default() += 1;
        self.last.send_replace(policy.to_owned());
        Ok(())
    }
}

/// Asks for an answer that depends on the session alone, word by word or at once.
async fn words(host: &Host, session: &str, stream: bool) -> Result<(reqwest::Response, String)> {
    let body = json!({
        "model": "demo", "max_tokens": 100, "stream": stream,
        "messages": [{ "role": "user", "content": session }],
    });
    let mut response = host.request_with(session, &body).send().await?;
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.context("a stream broke")? {
        bytes.extend_from_slice(&chunk);
    }
    let text = String::from_utf8(bytes)?;
    if !stream {
        let body: Value = serde_json::from_str(&text)?;
        let text = body["choices"][0]["message"]["content"].as_str();
        return Ok((response, text.context(body.to_string())?.to_owned()));
    }
    let events: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .collect();
    ensure!(
        events.last() == Some(&"[DONE]"),
        "a stream without an end: {text}"
    );
    let mut words = String::new();
    for event in events.iter().filter(|event| **event != "[DONE]") {
        let event: Value = serde_json::from_str(event)?;
        words += event["choices"][0]["delta"]["content"]
            .as_str()
            .unwrap_or_default();
    }
    Ok((response, words))
}
