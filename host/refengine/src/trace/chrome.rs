//! The Chrome trace event format (JSON object form), as Perfetto and `chrome://tracing` load it.

use std::borrow::Cow;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::{Begin, Event, Pass, Trace, What};

/// Whose trace it is.
#[derive(Debug, Clone)]
pub(crate) struct About {
    pub(crate) engine: String,
    pub(crate) rank: usize,
    pub(crate) time_scale: f64,
    pub(crate) begin: Begin,
    pub(crate) duration_us: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    trace_events: Lines<'a>,
    display_time_unit: &'static str,
    other_data: OtherData<'a>,
}

#[derive(Serialize)]
struct OtherData<'a> {
    engine: &'a str,
    rank: usize,
    clock: &'static str,
    time_scale: f64,
    start_unix_us: u64,
    duration_us: u64,
    events: usize,
    events_dropped: u64,
}

/// Written one by one: a long trace is not held twice.
struct Lines<'a>(&'a About, &'a Trace);

/// One event; the fields that its phase needs, and no others.
#[derive(Serialize)]
struct Line {
    name: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    ph: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<u64>,
    pid: u32,
    tid: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    args: Value,
}

/// The trace as a file.
pub(crate) fn chrome_trace(about: &About, trace: &Trace) -> Vec<u8> {
    let file = File {
        trace_events: Lines(about, trace),
        display_time_unit: "ms",
        other_data: OtherData {
            engine: &about.engine,
            rank: about.rank,
            clock: "real time, not modelled: µs since the Unix epoch",
            time_scale: about.time_scale,
            start_unix_us: about.begin.unix_us,
            duration_us: about.duration_us,
            events: trace.events.len(),
            events_dropped: trace.dropped,
        },
    };
    // Our own types, with string keys: cannot fail.
    serde_json::to_vec(&file).unwrap_or_default()
}

impl Serialize for Lines<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(about, trace) = self;
        let names = [
            name(about, "process_name", format!("engine {}", about.engine)),
            name(about, "thread_name", format!("rank {}", about.rank)),
        ];
        let events = trace.events.iter().map(|event| line(about, event));
        serializer.collect_seq(names.into_iter().chain(events))
    }
}

fn name(about: &About, what: &'static str, name: String) -> Line {
    Line {
        name: what.into(),
        cat: None,
        ph: "M",
        ts: None,
        dur: None,
        pid: std::process::id(),
        tid: about.rank,
        s: None,
        args: json!({ "name": name }),
    }
}

fn line(about: &About, event: &Event) -> Line {
    let dur = Some(event.end_us.saturating_sub(event.begin_us));
    let (name, cat, ph, dur, args): (Cow<'static, str>, _, _, _, _) = match event.what {
        What::Pass(pass) => (pass.kind().into(), "pass", "X", dur, pass.args()),
        What::Wait(cause) => {
            let args = json!({ "decision": cause.decision(), "cause": cause.as_str() });
            ("wait for ranks".into(), "collective", "X", dur, args)
        }
        What::Hold(cause) => {
            let args = json!({ "cause": cause.as_str() });
            ("hold".into(), "delayer", "i", None, args)
        }
        What::Load { running, waiting } => {
            let args = json!({ "running": running, "waiting": waiting });
            // A counter is its process's, unlike the rest: ranks are told apart by its name.
            let name = format!("requests of rank {}", about.rank);
            (name.into(), "load", "C", None, args)
        }
    };
    Line {
        name,
        cat: Some(cat),
        ph,
        ts: Some(about.begin.unix_us.saturating_add(event.begin_us)),
        dur,
        pid: std::process::id(),
        tid: about.rank,
        // An instant is that of its thread.
        s: (ph == "i").then_some("t"),
        args,
    }
}

impl Pass {
    fn kind(&self) -> &'static str {
        match (self.prefill_tokens, self.decode_sequences) {
            (0, _) => "decode",
            (_, 0) => "prefill",
            _ => "mixed",
        }
    }

    fn args(&self) -> Value {
        json!({
            "prefill_tokens": self.prefill_tokens,
            "decode_sequences": self.decode_sequences,
            "cached_tokens": self.cached_tokens,
            "kv_usage": self.kv_usage,
            "modelled_us": self.modelled_us,
        })
    }
}
