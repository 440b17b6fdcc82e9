//! A driver in Rust. The engine that it drives keeps its settings as files in a folder, one number
//! in each; yours would speak to the engine's control socket instead.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use pointsman_engine::{Driver, Failure, Knob, Open, export_driver};
use serde_json::Value;

/// One engine, of one rank.
pub struct Folder {
    path: PathBuf,
    /// What was set in the profiling window that is open: when, which, to what.
    window: Option<Vec<(u64, String, i64)>>,
    /// The trace of the one before it.
    trace: Option<Vec<u8>>,
}

impl Open for Folder {
    /// `{"name": …, "url": …, "config": {"folder": "…"}}`: which endpoint of the host's configuration it
    /// is, and what stands there under `driver.config`.
    fn open(said: &str) -> Result<Self, Failure> {
        let wanted = || {
            let found = format!("config.folder: wanted a folder that is there, found {said}");
            Failure::Unavailable(found)
        };
        let said: Value = serde_json::from_str(said).map_err(|_| wanted())?;
        let folder = said.pointer("/config/folder").and_then(Value::as_str);
        let path = PathBuf::from(folder.ok_or_else(wanted)?);
        if !path.is_dir() {
            return Err(wanted());
        }
        Ok(Folder {
            path,
            window: None,
            trace: None,
        })
    }
}

impl Folder {
    fn read(&self, name: &str) -> Result<i64, Failure> {
        // A name is a name, not a path.
        let file = self.path.join(name.replace(['/', '\\'], "_"));
        let text = fs::read_to_string(file).map_err(|_| Failure::Unknown)?;
        let wrong = |e| Failure::Unavailable(format!("{name}: {e}"));
        text.trim().parse().map_err(wrong)
    }
}

fn only(rank: u32) -> Result<(), Failure> {
    if rank == 0 {
        Ok(())
    } else {
        Err(Failure::Unknown)
    }
}

impl Driver for Folder {
    fn ranks(&mut self) -> Result<u32, Failure> {
        Ok(1)
    }

    fn knobs(&mut self, rank: u32) -> Result<Vec<Knob>, Failure> {
        only(rank)?;
        let failed = |e: std::io::Error| Failure::Unavailable(e.to_string());
        let mut knobs = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let name = entry
                .map_err(failed)?
                .file_name()
                .to_string_lossy()
                .into_owned();
            let value = self.read(&name)?;
            let unit = String::new();
            knobs.push(Knob {
                name,
                unit,
                low: 0,
                high: i64::MAX,
                value,
            });
        }
        knobs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(knobs)
    }

    fn knob_get(&mut self, rank: u32, name: &str) -> Result<i64, Failure> {
        only(rank)?;
        self.read(name)
    }

    fn knob_set(&mut self, rank: Option<u32>, name: &str, value: i64) -> Result<(), Failure> {
        only(rank.unwrap_or(0))?;
        self.read(name)?;
        if value < 0 {
            return Err(Failure::Unavailable(format!(
                "{name}: wanted at least 0, found {value}"
            )));
        }
        let written = fs::write(self.path.join(name), value.to_string());
        written.map_err(|e| Failure::Unavailable(e.to_string()))?;
        if let Some(window) = self
            .window
            .as_mut()
            .filter(|window| window.len() < MAX_EVENTS)
        {
            window.push((now(), name.to_owned(), value));
        }
        Ok(())
    }

    fn stat(&mut self, rank: u32, name: &str) -> Result<f64, Failure> {
        only(rank)?;
        Ok(self.read(name)? as f64)
    }

    fn profile_start(&mut self) -> Result<(), Failure> {
        self.window = Some(Vec::new());
        Ok(())
    }

    fn profile_stop(&mut self) -> Result<String, Failure> {
        let window = self.window.take();
        let window = window.ok_or_else(|| Failure::Unavailable("no window is open".to_owned()))?;
        self.trace = Some(trace(&window));
        Ok(format!("{{\"settings\": {}}}", window.len()))
    }

    fn profile_trace(&mut self, rank: u32) -> Result<Vec<u8>, Failure> {
        only(rank)?;
        self.trace.clone().ok_or(Failure::Unknown)
    }
}

/// Of a window.
const MAX_EVENTS: usize = 100_000;

/// Microseconds since the Unix epoch, as in every engine's trace.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_micros() as u64)
}

/// In the Chrome trace event format: a counter for each setting.
fn trace(window: &[(u64, String, i64)]) -> Vec<u8> {
    let events = window.iter().map(|(at, name, value)| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let name = name.replace(|c| !plain(c), "_");
        format!(
            r#"{{"ph": "C", "name": "{name}", "pid": 1, "tid": 0, "ts": {at}, "args": {{"value": {value}}}}}"#
        )
    });
    let events: Vec<String> = events.collect();
    format!("{{\"traceEvents\": [\n{}\n]}}\n", events.join(",\n")).into_bytes()
}

export_driver!(Folder);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_read_and_written_and_others_are_unknown() {
        let folder = std::env::temp_dir().join(format!("engine-driver-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("max_queue_ms"), "5000\n").unwrap();
        let said = serde_json::json!({ "name": "a", "url": "", "config": { "folder": folder } });
        let mut engine = Folder::open(&said.to_string()).unwrap();
        assert!(Folder::open("{}").is_err() && Folder::open("").is_err());
        assert_eq!(engine.knob_get(0, "max_queue_ms"), Ok(5000));
        assert!(engine.profile_stop().is_err());
        engine.profile_start().unwrap();
        engine.knob_set(None, "max_queue_ms", 100).unwrap();
        assert_eq!(engine.profile_stop(), Ok("{\"settings\": 1}".to_owned()));
        let trace = String::from_utf8(engine.profile_trace(0).unwrap()).unwrap();
        assert!(trace.contains(r#""name": "max_queue_ms""#) && trace.contains(r#"{"value": 100}"#));
        assert_eq!(engine.knobs(0).unwrap()[0].value, 100);
        assert_eq!(engine.knob_get(1, "max_queue_ms"), Err(Failure::Unknown));
        assert_eq!(engine.knob_set(None, "other", 1), Err(Failure::Unknown));
        assert!(engine.knob_set(None, "max_queue_ms", -1).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
