//! A whole installation on this machine: two reference engines of four ranks, and the host before
//! them, each a process of this same binary.

mod child;

use anyhow::{Context, Result};
use child::Child;
use std::io::Write;
use std::net::TcpListener;
use tempfile::NamedTempFile;

/// The targets of the stage.
pub const TARGETS: [&str; 8] = ["a/0", "a/1", "a/2", "a/3", "b/0", "b/1", "b/2", "b/3"];

/// How to set it up.
pub struct StageOptions<'a> {
    pub policy: &'a str,
    pub time_scale: f64,
    /// the ports that the documentation names, where they are free
    pub fixed_ports: bool,
}

/// See the module. Dropped, it ends its processes.
pub struct Stage {
    host: Child,
    engines: Vec<Child>,
    _config: NamedTempFile,
}

impl Stage {
    /// Starts engines and host; returns when all of them listen.
    pub async fn start(options: &StageOptions<'_>) -> Result<Stage> {
        let port = |wanted| match options.fixed_ports {
            true => free_or_any(wanted),
            false => 0,
        };
        let mut engines = Vec::new();
        for (name, wanted) in [("a", 9001), ("b", 9002)] {
            let listen = format!("127.0.0.1:{}", port(wanted));
            let scale = options.time_scale.to_string();
            let args = [
                "engine",
                "--listen",
                &listen,
                "--ranks",
                "4",
                "--name",
                name,
                "--time-scale",
                &scale,
            ];
            engines.push(Child::start(&args).await?);
        }
        let mut endpoints = Vec::new();
        for (engine, name) in engines.iter().zip(["a", "b"]) {
            endpoints.push(format!(
                "  {{ name = \"{name}\", url = \"{}\", ranks = 4 }},",
                engine.url(0)?
            ));
        }
        let config = format!(
            "[listen]\naddress = \"127.0.0.1:{}\"\n\n[admin]\naddress = \"127.0.0.1:{}\"\n\n\
             [policy]\nuse = \"{}\"\n\n[[pool]]\nname = \"main\"\nrole = \"serve\"\n\
             dialect = \"vllm\"\nendpoints = [\n{}\n]\nhealth = {{}}\n",
            port(8080),
            port(8081),
            options.policy,
            endpoints.join("\n")
        );
        let mut file = tempfile::Builder::new()
            .prefix("pointsman-")
            .suffix(".toml")
            .tempfile()
            .context("no temporary file for the configuration")?;
        file.write_all(config.as_bytes())
            .context("cannot write the configuration")?;
        let path = file.path().to_string_lossy().into_owned();
        let host = Child::start(&["serve", "--config", &path]).await?;
        // Both addresses must be there before anybody asks for them.
        host.url(0)?;
        host.url(1)?;
        Ok(Stage {
            host,
            engines,
            _config: file,
        })
    }

    /// Where clients come in.
    pub fn url(&self) -> &str {
        self.host.url(0).unwrap_or_default()
    }

    /// Where operators come in.
    pub fn admin(&self) -> &str {
        (self.host.url(1).unwrap_or_default()).trim_end_matches("/metrics")
    }

    /// Says which process ended by itself.
    pub async fn ended(&mut self) -> String {
        let [a, b] = self.engines.as_mut_slice() else {
            return "an engine is missing".to_owned();
        };
        tokio::select! {
            ended = self.host.ended() => ended,
            ended = a.ended() => ended,
            ended = b.ended() => ended,
        }
    }

    /// Ends everything, the host first.
    pub async fn stop(self) {
        self.host.stop().await;
        for engine in self.engines {
            engine.stop().await;
        }
    }
}

/// The port if it is free, else 0: any.
fn free_or_any(port: u16) -> u16 {
    TcpListener::bind(("127.0.0.1", port)).map_or(0, |_| port)
}
