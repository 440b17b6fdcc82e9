//! An operator who edits the file.

use crate::operated::{Operated, Said, config, read};
use anyhow::{Context, Result, ensure};
use pointsman_tests::{Answer, Engine, pointsman};
use reqwest::Method;
use serde_json::Value;
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;

pub const SOON: Duration = Duration::from_secs(30);

/// See the module.
pub struct Edited(pub Arc<Operated>);

impl Edited {
    pub async fn start(policy: &str, engines: &[&Engine]) -> Result<Edited> {
        Ok(Edited(Arc::new(Operated::start(policy, engines).await?)))
    }

    pub fn text(&self, policy: &str, engines: &[&Engine]) -> String {
        config(&self.0.folder, policy, engines)
    }

    pub fn write(&self, text: &str) -> Result<()> {
        self.0.host.rewrite(text)
    }

    pub async fn reload(&self) -> Result<Said> {
        read(self.0.request(Method::POST, "config/reload")).await
    }

    pub async fn becomes(&self, text: &str) -> Result<Value> {
        self.write(text)?;
        self.reload().await?.ok()
    }

    /// By a signal; waits until the host has seen to it.
    pub async fn hangup(&self) -> Result<Value> {
        let last = |now: &Value| (now["last"].clone(), now["reloads"].clone());
        let before = last(&self.0.get("config").await?);
        self.0.host.process.signal("HUP").await?;
        self.until(|now| last(now) != before).await
    }

    pub async fn until(&self, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let wait = async {
            let mut look = tokio::time::interval(Duration::from_millis(10));
            loop {
                look.tick().await;
                let now = self.0.get("config").await?;
                if wanted(&now) {
                    return anyhow::Ok(now);
                }
            }
        };
        (tokio::time::timeout(SOON, wait).await).context("the configuration is not as wanted")?
    }

    pub async fn targets(&self) -> Result<Vec<String>> {
        let targets = self.0.get("targets").await?;
        let name = |target: &Value| target["target"].as_str().unwrap().to_owned();
        Ok(targets["targets"]
            .as_array()
            .unwrap()
            .iter()
            .map(name)
            .collect())
    }

    pub async fn chat(&self, session: &str) -> Result<Answer> {
        let answer = self.0.host.chat(session, "hello").await?;
        ensure!(answer.status == 200, "{session}: {answer:?}");
        Ok(answer)
    }

    /// `pointsman ARGS` at this host.
    pub async fn pointsman(&self, args: &[&str]) -> Result<Output> {
        let output = Command::new(pointsman())
            .args(args)
            .args(["--admin", &self.0.host.admin, "--token-file"])
            .arg(self.0.folder.path().join("admin.token"))
            .output();
        output.await.context("pointsman")
    }

    /// A signal while the file is bad.
    pub async fn hangup_bad(&self) -> Result<Value> {
        self.0.host.process.signal("HUP").await?;
        self.until(|now| {
            now["last"]
                .as_str()
                .unwrap()
                .starts_with("not reloaded by SIGHUP")
        })
        .await
    }
}

/// A list of names.
pub fn names(value: &Value) -> Vec<&str> {
    (value.as_array().unwrap().iter())
        .map(|name| name.as_str().unwrap())
        .collect()
}
