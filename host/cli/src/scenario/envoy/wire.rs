//! Both ends of Envoy: a client for each request, an engine for each target. All that happens on either
//! comes as an [`Event`].

use anyhow::{Context, Result};
use socket2::SockRef;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

/// Heads are smaller.
const MAX_HEAD: usize = 64 << 10;

/// The id of a request, as both ends know it.
pub const ID: &str = "x-scenario-id";

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// an engine was sent a request
    Arrived {
        id: String,
        /// whose engine
        target: usize,
        head: Head,
        connection: TcpStream,
    },
    /// a client was sent something
    Answer { id: String, bytes: Vec<u8> },
    /// a client's connection is over
    Closed { id: String },
}

/// The head of a request or an answer.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// of an answer
    pub status: u16,
    lines: Vec<(String, String)>,
}

impl Head {
    /// None: it is not complete.
    pub fn parse(bytes: &[u8]) -> Option<(Head, &[u8])> {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let text = String::from_utf8_lossy(bytes.get(..end)?);
        let mut lines = text.lines();
        let status = lines.next().and_then(|first| first.split(' ').nth(1));
        let lines = lines.filter_map(|line| line.split_once(':'));
        let head = Head {
            status: status.and_then(|status| status.parse().ok()).unwrap_or(0),
            lines: lines
                .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
                .collect(),
        };
        Some((head, bytes.get(end + 4..)?))
    }

    /// Whether that is the whole body. Envoy keeps a connection that it has said to close for a second.
    pub fn ends(&self, body: &[u8]) -> bool {
        match self.get("content-length") {
            Some(length) => length
                .parse()
                .is_ok_and(|length: usize| body.len() >= length),
            None => body.ends_with(b"0\r\n\r\n"),
        }
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        let line = self.lines.iter().find(|(other, _)| other == name);
        line.map(|(_, value)| value.as_str())
    }
}

/// Listens for a target's requests. A connection carries one: the answer says so.
pub fn engine(target: usize, events: Sender<Event>) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port for an engine")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            let events = events.clone();
            thread::spawn(move || {
                let Some(head) = head_of(&connection) else {
                    return;
                };
                let id = head.get(ID).unwrap_or_default().to_owned();
                // The scenario may be over.
                let _ = events.send(Event::Arrived {
                    id,
                    target,
                    head,
                    connection,
                });
            });
        }
    });
    Ok(address)
}

/// The head of a request, whose body is empty.
fn head_of(mut connection: &TcpStream) -> Option<Head> {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        let read = connection.read(&mut part).ok().filter(|n| *n > 0)?;
        bytes.extend_from_slice(part.get(..read)?);
        match Head::parse(&bytes) {
            Some((head, _)) => return Some(head),
            None if bytes.len() > MAX_HEAD => return None,
            None => {}
        }
    }
}

/// Sends a request, and follows its answer.
pub fn client(
    envoy: SocketAddr,
    id: &str,
    headers: &[(String, String)],
    events: Sender<Event>,
) -> Result<TcpStream> {
    let mut connection = TcpStream::connect(envoy).context("no connection to Envoy")?;
    connection.set_write_timeout(Some(Duration::from_secs(10)))?;
    let headers: String = (headers.iter())
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\n\
         content-length: 0\r\n{ID}: {id}\r\n{headers}\r\n"
    );
    connection.write_all(request.as_bytes())?;
    let (mut reader, id) = (connection.try_clone()?, id.to_owned());
    thread::spawn(move || {
        let mut part = [0; 4096];
        loop {
            let event = match reader.read(&mut part) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Ok(0) | Err(_) => Event::Closed { id: id.clone() },
                Ok(read) => Event::Answer {
                    id: id.clone(),
                    bytes: part.get(..read).unwrap_or_default().to_vec(),
                },
            };
            let last = matches!(event, Event::Closed { .. });
            if events.send(event).is_err() || last {
                return;
            }
        }
    });
    Ok(connection)
}

/// Ends an engine's connection as a process does that dies.
pub fn reset(connection: TcpStream) {
    // Where it does not work the other side has ended it before.
    let _ = SockRef::from(&connection).set_linger(Some(Duration::ZERO));
    drop(connection);
}

/// The client goes.
pub fn leave(connection: &TcpStream) {
    // As above.
    let _ = connection.shutdown(Shutdown::Both);
}
