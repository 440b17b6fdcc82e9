//! An upstream that costs next to nothing: it reads a request by its content length and writes bytes
//! that were made before.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// a JSON document
    Whole,
    /// 22 server-sent events at once
    Burst,
    /// 22 server-sent events, 5 ms apart
    Paced,
}

impl Shape {
    pub fn parse(name: &str) -> Result<Shape> {
        match name {
            "whole" => Ok(Shape::Whole),
            "burst" => Ok(Shape::Burst),
            "paced" => Ok(Shape::Paced),
            other => bail!("no shape {other:?}"),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Shape::Whole => "whole",
            Shape::Burst => "burst",
            Shape::Paced => "paced",
        }
    }

    pub fn about(self) -> &'static str {
        match self {
            Shape::Whole => "2 KB chat POST, JSON answer",
            Shape::Burst => "2 KB chat POST, 22 server-sent events at once",
            Shape::Paced => "2 KB chat POST, 22 server-sent events every 5 ms",
        }
    }
}

/// A process, killed when it is dropped.
pub struct Upstream {
    process: Child,
    pub port: u16,
}

impl Drop for Upstream {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts one on core 0.
pub fn start(shape: Shape) -> Result<Upstream> {
    let mut process = Command::new("taskset")
        .args(["-c", "0"])
        .arg(std::env::current_exe()?)
        .args(["upstream", "0", shape.name()])
        .stdout(Stdio::piped())
        .spawn()
        .context("taskset (util-linux) is needed")?;
    let output = process.stdout.take().context("no output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    Ok(Upstream {
        process,
        port: line.trim().parse()?,
    })
}

/// Serves for ever.
pub fn run(port: u16, shape: Shape) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        println!("{}", listener.local_addr()?.port());
        loop {
            let (connection, _) = listener.accept().await?;
            connection.set_nodelay(true)?;
            tokio::spawn(serve(connection, shape));
        }
    })
}

async fn serve(mut connection: TcpStream, shape: Shape) -> Result<()> {
    let parts = answer(shape);
    let mut buffer = Vec::with_capacity(16 << 10);
    while read_request(&mut connection, &mut buffer).await? {
        for (n, part) in parts.iter().enumerate() {
            if n > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            connection.write_all(part).await?;
        }
    }
    Ok(())
}

/// Reads one request and forgets it. False: the connection has ended.
async fn read_request(connection: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<bool> {
    loop {
        if let Some(head) = find(buffer, b"\r\n\r\n") {
            let whole = head + 4 + content_length(buffer.get(..head).unwrap_or_default());
            if buffer.len() >= whole {
                buffer.drain(..whole);
                return Ok(true);
            }
        }
        if connection.read_buf(buffer).await? == 0 {
            return Ok(false);
        }
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|w| w == needle)
}

fn content_length(head: &[u8]) -> usize {
    let head = String::from_utf8_lossy(head);
    (head.lines())
        .find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.eq_ignore_ascii_case("content-length")).then(|| value.trim().parse().ok())?
        })
        .unwrap_or(0)
}

/// The pieces that are written, 5 ms apart if there are several.
fn answer(shape: Shape) -> Vec<Vec<u8>> {
    if shape == Shape::Whole {
        let body = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":400,"completion_tokens":20,"total_tokens":420}}"#;
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        return vec![(head + body).into_bytes()];
    }
    let mut events: Vec<String> = (0..20)
        .map(|n| format!("data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" tok{n}\"}},\"finish_reason\":null}}]}}\n\n"))
        .collect();
    events.push("data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":400,\"completion_tokens\":20,\"total_tokens\":420}}\n\n".to_owned());
    events.push("data: [DONE]\n\n".to_owned());
    let mut parts: Vec<Vec<u8>> = (events.iter())
        .map(|event| format!("{:x}\r\n{event}\r\n", event.len()).into_bytes())
        .collect();
    let head =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    if let Some(first) = parts.first_mut() {
        first.splice(..0, head.iter().copied());
    }
    if let Some(last) = parts.last_mut() {
        last.extend_from_slice(b"0\r\n\r\n");
    }
    match shape {
        Shape::Burst => vec![parts.concat()],
        Shape::Whole | Shape::Paced => parts,
    }
}
