//! Envoys with different filters, each alone on core 1 with one worker thread.

use crate::cpu;
use anyhow::{Context, Result, bail, ensure};
use pointsman_tests::{envoy, guest, pointsman};
use std::fmt::Write;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What is between Envoy's clients and its router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// nothing
    None,
    /// a Wasm filter that does nothing
    Empty,
    /// one that waits for the body and reads it
    Reading,
    /// a policy, which decides on headers
    Policy(&'static str),
    /// a policy, which waits for the body and looks into it
    ReadingPolicy(&'static str),
}

impl Filter {
    pub fn name(self) -> String {
        match self {
            Filter::None => "no filter".to_owned(),
            Filter::Empty => "empty".to_owned(),
            Filter::Reading => "empty, reads the body".to_owned(),
            Filter::Policy(policy) => policy.to_owned(),
            Filter::ReadingPolicy(policy) => format!("{policy}, reads the body"),
        }
    }

    /// The one without a policy that does as much.
    pub fn bare(self) -> Filter {
        match self {
            Filter::Reading | Filter::ReadingPolicy(_) => Filter::Reading,
            Filter::None | Filter::Empty | Filter::Policy(_) => Filter::Empty,
        }
    }
}

/// A running Envoy, killed when it is dropped.
pub struct Filtered {
    pub filter: Filter,
    pub port: u16,
    process: Child,
}

impl Drop for Filtered {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Filtered {
    /// Before two engines of four ranks each.
    pub fn start(filter: Filter, upstreams: [u16; 2], folder: &Path) -> Result<Filtered> {
        let folder = folder.join(filter.name().replace([' ', ','], "-"));
        std::fs::create_dir_all(&folder)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let config = configure(filter, port, upstreams, &folder)?;
        let mut process = Command::new("taskset")
            .args(["-c", "1"])
            .arg(envoy()?)
            .arg("-c")
            .arg(config)
            .args(["--concurrency", "1", "--disable-hot-restart"])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("taskset (util-linux) is needed")?;
        let log = process.stderr.take().context("no log")?;
        let filtered = Filtered {
            filter,
            port,
            process,
        };
        let mut lines = BufReader::new(log).lines();
        let mut said = String::new();
        for line in lines.by_ref() {
            let line = line?;
            if line.contains("starting workers") {
                // Its pipe must not fill up.
                std::thread::spawn(move || lines.for_each(drop));
                return Ok(filtered);
            }
            writeln!(said, "{line}")?;
        }
        bail!("Envoy with {filter:?} ended: {said}")
    }

    /// See [`cpu::ns_of`].
    pub fn cpu_ns(&self) -> Result<u64> {
        cpu::ns_of(self.process.id())
    }
}

/// What `pointsman envoy config` writes, with another filter in the policy's place where one is wanted.
fn configure(filter: Filter, port: u16, upstreams: [u16; 2], folder: &Path) -> Result<PathBuf> {
    let policy = match filter {
        Filter::Policy(policy) | Filter::ReadingPolicy(policy) => policy,
        Filter::None | Filter::Empty | Filter::Reading => "least-tokens",
    };
    let [a, b] = upstreams;
    let text = format!(
        "[listen]\naddress = \"127.0.0.1:{port}\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [policy]\nuse = \"{policy}\"\n[[pool]]\nname = \"main\"\ndialect = \"vllm\"\nendpoints = [\n\
         {{ name = \"a\", url = \"http://127.0.0.1:{a}\", ranks = 4 }},\n\
         {{ name = \"b\", url = \"http://127.0.0.1:{b}\", ranks = 4 }},\n]\n"
    );
    let config = folder.join("pointsman.toml");
    std::fs::write(&config, text)?;
    let mut command = Command::new(pointsman());
    command.args(["envoy", "config", "--config"]).arg(&config);
    command.arg("--out").arg(folder);
    if matches!(filter, Filter::ReadingPolicy(_)) {
        command.arg("--read-body");
    }
    let output = command.output().context("`make build` first")?;
    ensure!(
        output.status.success(),
        "pointsman envoy config: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let envoy = folder.join("envoy.yaml");
    match filter {
        Filter::Policy(_) | Filter::ReadingPolicy(_) => {}
        Filter::None => {
            let text = std::fs::read_to_string(&envoy)?;
            let (before, rest) = text
                .split_once("          - name: pointsman\n")
                .context("no filter in envoy.yaml")?;
            let (_, after) = rest
                .split_once("          - name: envoy.filters.http.router\n")
                .context("no router in envoy.yaml")?;
            let router = "          - name: envoy.filters.http.router\n";
            std::fs::write(&envoy, [before, router, after].concat())?;
        }
        Filter::Empty | Filter::Reading => {
            std::fs::write(folder.join("filter.yaml"), empty(filter)?)?;
        }
    }
    Ok(envoy)
}

/// As the policy's filter, but for the module and its configuration.
fn empty(filter: Filter) -> Result<String> {
    let module = guest("empty-filter");
    ensure!(
        module.is_file(),
        "no {}: `make policies` first",
        module.display()
    );
    let reads = if filter == Filter::Reading {
        "body"
    } else {
        "nothing"
    };
    Ok(format!(
        r#"version_info: "1"
resources:
- "@type": type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig
  name: pointsman
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
    config:
      name: pointsman
      root_id: pointsman
      configuration: {{ "@type": type.googleapis.com/google.protobuf.StringValue, value: {reads} }}
      vm_config:
        vm_id: pointsman
        runtime: envoy.wasm.runtime.v8
        code: {{ local: {{ filename: "{}" }} }}
      allow_on_headers_stop_iteration: true
      failure_policy: FAIL_RELOAD
"#,
        module.display()
    ))
}
