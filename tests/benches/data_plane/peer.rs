//! The proxies, each alone on core 1.

use crate::cpu;
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running proxy; ended when it is dropped.
pub struct Peer {
    pub name: &'static str,
    pub port: u16,
    process: Child,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // By a signal that lets nginx end its worker too.
        let pid = self.process.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let _ = self.process.wait();
    }
}

fn alone(program: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", "1", program]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Peer {
    /// Ours: one thread, session affinity.
    pub fn pointsman(upstreams: [u16; 2], folder: &Path) -> Result<Peer> {
        let [a, b] = upstreams;
        let config = format!(
            "[listen]\naddress = \"127.0.0.1:0\"\nthreads = 1\n[admin]\naddress = \"127.0.0.1:0\"\n\
             [policy]\nuse = \"session-affinity\"\n[[pool]]\nname = \"main\"\ndialect = \"vllm\"\n\
             endpoints = [\n{{ name = \"a\", url = \"http://127.0.0.1:{a}\", ranks = 4 }},\n\
             {{ name = \"b\", url = \"http://127.0.0.1:{b}\", ranks = 4 }},\n]\n"
        );
        let path = folder.join("pointsman.toml");
        std::fs::write(&path, config)?;
        let binary = pointsman_tests::pointsman();
        let mut process = alone(&binary.to_string_lossy())
            .args(["serve", "--config"])
            .arg(path)
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take().context("no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let port = (line
            .split([' ', ',', ':', '/'])
            .filter_map(|word| word.parse().ok()))
        .next();
        Ok(Peer {
            name: "pointsman",
            port: port.context("`make build` first")?,
            process,
        })
    }

    /// One worker, consistent hash of the session, kept-alive upstreams, no buffering.
    pub fn nginx(upstreams: [u16; 2], folder: &Path) -> Result<Peer> {
        let [a, b] = upstreams;
        let port = free_port()?;
        let home = folder.join("nginx");
        std::fs::create_dir_all(&home)?;
        let home_text = home.display();
        let temp: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|kind| format!("{kind}_temp_path {home_text}/{kind};\n"))
            .collect();
        let config = format!(
            "daemon off;\nworker_processes 1;\npid {home_text}/pid;\nerror_log {home_text}/error.log;\n\
             events {{ worker_connections 4096; }}\nhttp {{\naccess_log off;\n{temp}\
             keepalive_requests 100000000;\nclient_body_buffer_size 64k;\n\
             upstream engines {{ hash $http_x_session_id consistent; server 127.0.0.1:{a}; \
             server 127.0.0.1:{b}; keepalive 64; keepalive_requests 100000000; }}\n\
             server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://engines; \
             proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_buffering off; }} }}\n}}\n"
        );
        let path = home.join("nginx.conf");
        std::fs::write(&path, config)?;
        let process = alone("nginx").arg("-c").arg(path).spawn();
        Peer::up("nginx", port, process.context("nginx is not there")?)
    }

    /// One thread, consistent hash of the session, kept-alive upstreams, streams passed at once.
    pub fn haproxy(upstreams: [u16; 2], folder: &Path) -> Result<Peer> {
        let [a, b] = upstreams;
        let port = free_port()?;
        let config = format!(
            "global\n  nbthread 1\n  maxconn 4096\ndefaults\n  mode http\n  timeout connect 5s\n  \
             timeout client 600s\n  timeout server 600s\n  option http-keep-alive\n  option http-no-delay\n\
             frontend f\n  bind 127.0.0.1:{port}\n  default_backend engines\nbackend engines\n  \
             balance hdr(x-session-id)\n  hash-type consistent sdbm avalanche\n  http-reuse always\n  \
             server a 127.0.0.1:{a}\n  server b 127.0.0.1:{b}\n"
        );
        let path = folder.join("haproxy.cfg");
        std::fs::write(&path, config)?;
        let process = alone("haproxy").args(["-db", "-f"]).arg(path).spawn();
        Peer::up("haproxy", port, process.context("haproxy is not there")?)
    }

    fn up(name: &'static str, port: u16, process: Child) -> Result<Peer> {
        let peer = Peer {
            name,
            port,
            process,
        };
        let deadline = Instant::now() + Duration::from_secs(5);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            anyhow::ensure!(Instant::now() < deadline, "{name} does not come up");
            std::thread::yield_now();
        }
        Ok(peer)
    }

    /// See [`cpu::ns_of`].
    pub fn cpu_ns(&self) -> Result<u64> {
        cpu::ns_of(self.process.id())
    }
}
