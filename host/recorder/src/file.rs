//! A recording as a file.

use crate::line::{Line, VERSION, snapshot};
use pointsman_core::{Moment, Snapshot};
use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;
use thiserror::Error;

/// A longer line is no decision, in bytes: one over 65,536 targets takes a tenth of it.
const MAX_LINE: u64 = 64 << 20;

/// Writes decisions as lines.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    fleet: Option<Arc<Snapshot>>,
    /// so far
    bytes: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the first line.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W) -> io::Result<Writer<W>> {
        let mut writer = Writer {
            out,
            fleet: None,
            bytes: 0,
        };
        writer.line(&Line::PointsmanRecording(VERSION))?;
        Ok(writer)
    }

    /// Writes one decision, after the fleet if that has changed.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&mut self, moment: &Moment) -> io::Result<()> {
        let known = (self.fleet.as_ref()).is_some_and(|fleet| Arc::ptr_eq(fleet, &moment.fleet));
        if !known {
            self.line(&Line::fleet(&moment.fleet))?;
            self.fleet = Some(moment.fleet.clone());
        }
        self.line(&Line::decision(moment))
    }

    /// Bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What it wrote to.
    pub fn into_inner(self) -> W {
        self.out
    }

    // In one piece: whoever reads meanwhile, or after a crash, finds whole lines and at most one half.
    fn line(&mut self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.out.write_all(&text)?;
        self.bytes += text.len() as u64;
        Ok(())
    }
}

/// Why a recording cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// the system's
    #[error("the recording cannot be read: {0}")]
    Io(#[from] io::Error),
    /// not one
    #[error(
        "this is not a recording: wanted {{\"pointsman_recording\":{VERSION}}} as its first line"
    )]
    Other,
    /// of another version
    #[error("this recording is of version {0}, wanted {VERSION}: record anew with this host")]
    Version(u32),
    /// a line in the middle
    #[error("line {line} of the recording cannot be used: {problem}")]
    Line {
        /// from 1
        line: u64,
        /// what is wrong
        problem: String,
    },
}

/// Reads decisions one by one. A last line that its writer did not finish is left out.
#[derive(Debug)]
pub struct Reader<R> {
    lines: R,
    fleet: Option<Arc<Snapshot>>,
    line: u64,
    torn: bool,
}

impl<R: BufRead> Reader<R> {
    /// Reads the first line.
    ///
    /// # Errors
    /// If this is not a recording of this version.
    pub fn new(lines: R) -> Result<Reader<R>, ReadError> {
        let mut reader = Reader {
            lines,
            fleet: None,
            line: 0,
            torn: false,
        };
        match reader.line() {
            Ok(Some(Line::PointsmanRecording(VERSION))) => Ok(reader),
            Ok(Some(Line::PointsmanRecording(other))) => Err(ReadError::Version(other)),
            Err(ReadError::Io(error)) => Err(ReadError::Io(error)),
            Ok(_) | Err(_) => Err(ReadError::Other),
        }
    }

    /// Whether the last line was half a one: the host was killed while it wrote, or writes still.
    pub fn is_torn(&self) -> bool {
        self.torn
    }

    fn line(&mut self) -> Result<Option<Line>, ReadError> {
        let mut text = Vec::new();
        let read = (&mut self.lines)
            .take(MAX_LINE)
            .read_until(b'\n', &mut text)?;
        if read == 0 {
            return Ok(None);
        }
        self.line += 1;
        let bad = |problem: String| ReadError::Line {
            line: self.line,
            problem,
        };
        if text.last() != Some(&b'\n') {
            if read as u64 == MAX_LINE {
                return Err(bad(format!("it is longer than {MAX_LINE} bytes")));
            }
            self.torn = true;
            return Ok(None);
        }
        let line = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
        Ok(Some(line))
    }

    fn moment(&mut self) -> Result<Option<Moment>, ReadError> {
        loop {
            match self.line()? {
                None => return Ok(None),
                Some(Line::Fleet(members)) => self.fleet = Some(Arc::new(snapshot(members))),
                Some(Line::Decision(decided)) => {
                    let fleet = self.fleet.clone().ok_or_else(|| ReadError::Line {
                        line: self.line,
                        problem: "a decision before any fleet".to_owned(),
                    })?;
                    return Ok(Some(decided.moment(fleet)));
                }
                // Two recordings, one after the other, are one.
                Some(Line::PointsmanRecording(VERSION)) => {}
                Some(Line::PointsmanRecording(other)) => return Err(ReadError::Version(other)),
            }
        }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Moment, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.moment().transpose()
    }
}
