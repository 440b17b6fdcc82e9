//! An engine that a driver opened, call by call.

use std::ffi::c_char;

use super::Library;
use crate::abi;
use crate::driver::{Driver, Failure, Kernel, Knob, TRACE_BYTES};

/// Of an error's text, bytes.
const MESSAGE_BYTES: usize = 1024;
/// Knobs of a rank, kernels of an operation.
const MAX_LIST: usize = 256;
/// Of a trace that is asked for at one time, bytes.
const PIECE_BYTES: usize = 1 << 20;
/// Ranks of an engine.
const MAX_RANKS: u32 = 65_536;

/// Not `Send`: it stays on its thread.
pub(super) struct Opened {
    pub(super) engine: *mut abi::Engine,
    pub(super) library: Library,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: `open` gave the handle, and it is not used again. The library is still loaded.
        unsafe { (self.library.table.close)(self.engine) }
    }
}

// SAFETY of every call below: the handle is open and on its thread, the arguments are as the header
// wants them, and live through the call.
impl Driver for Opened {
    fn ranks(&mut self) -> Result<u32, Failure> {
        let mut ranks = 0;
        check(|message| unsafe {
            (self.library.table.ranks)(self.engine, &raw mut ranks, message)
        })?;
        if !(1..=MAX_RANKS).contains(&ranks) {
            return Err(self.garbage(&format!("{ranks} ranks: wanted 1 to {MAX_RANKS}")));
        }
        Ok(ranks)
    }

    fn knobs(&mut self, rank: u32) -> Result<Vec<Knob>, Failure> {
        let knobs = self.list(abi::Knob::BLANK, |this, out, count, message| unsafe {
            (this.library.table.knobs)(this.engine, rank, out, MAX_LIST, count, message)
        })?;
        let knob = |knob: &abi::Knob| {
            let (name, unit) = (self.text(knob.name)?, self.text(knob.unit)?);
            let abi::Knob {
                low, high, value, ..
            } = *knob;
            if !(low..=high).contains(&value) {
                let what = format!("knob {name:?} is {value}, with values from {low} to {high}");
                return Err(self.garbage(&what));
            }
            Ok(Knob {
                name,
                unit,
                low,
                high,
                value,
            })
        };
        knobs.iter().map(knob).collect()
    }

    fn knob_get(&mut self, rank: u32, name: &str) -> Result<i64, Failure> {
        let mut value = 0;
        check(|message| unsafe {
            let get = self.library.table.knob_get;
            get(self.engine, rank, bytes(name), &raw mut value, message)
        })?;
        Ok(value)
    }

    fn knob_set(&mut self, rank: Option<u32>, name: &str, value: i64) -> Result<(), Failure> {
        let rank = rank.unwrap_or(abi::ALL_RANKS);
        check(|message| unsafe {
            (self.library.table.knob_set)(self.engine, rank, bytes(name), value, message)
        })
    }

    fn stat(&mut self, rank: u32, name: &str) -> Result<f64, Failure> {
        let mut value = 0.0;
        check(|message| unsafe {
            let stat = self.library.table.stat;
            stat(self.engine, rank, bytes(name), &raw mut value, message)
        })?;
        Ok(value)
    }

    fn profile_start(&mut self) -> Result<(), Failure> {
        let start = self.library.table.profile_start.ok_or(Failure::Unknown)?;
        check(|message| unsafe { start(self.engine, message) })
    }

    fn profile_stop(&mut self) -> Result<String, Failure> {
        let stop = self.library.table.profile_stop.ok_or(Failure::Unknown)?;
        said(|message| unsafe { stop(self.engine, message) })
    }

    fn profile_trace(&mut self, rank: u32) -> Result<Vec<u8>, Failure> {
        let read = self.library.table.profile_read.ok_or(Failure::Unknown)?;
        let mut trace = Vec::new();
        let mut piece = vec![0u8; PIECE_BYTES];
        loop {
            let (offset, mut length) = (trace.len() as u64, 0);
            let buffer = piece.as_mut_ptr().cast::<c_char>();
            check(|message| unsafe {
                let length = &raw mut length;
                read(
                    self.engine,
                    rank,
                    offset,
                    buffer,
                    PIECE_BYTES,
                    length,
                    message,
                )
            })?;
            let Some(read) = piece.get(..length) else {
                let what = format!("a piece of {length} bytes: wanted at most {PIECE_BYTES}");
                return Err(self.garbage(&what));
            };
            if read.is_empty() {
                return Ok(trace);
            }
            if trace.len() + read.len() > TRACE_BYTES {
                let what = format!("a trace of rank {rank} of more than {TRACE_BYTES} bytes");
                return Err(self.garbage(&what));
            }
            trace.extend_from_slice(read);
        }
    }

    fn kernels(&mut self, rank: u32, operation: &str) -> Result<Vec<Kernel>, Failure> {
        let kernels = self.library.table.kernels.ok_or(Failure::Unknown)?;
        let found = self.list(abi::Kernel::BLANK, |this, out, count, message| unsafe {
            kernels(
                this.engine,
                rank,
                bytes(operation),
                out,
                MAX_LIST,
                count,
                message,
            )
        })?;
        let kernel = |kernel: &abi::Kernel| {
            Ok(Kernel {
                name: self.text(kernel.name)?,
                low_m: kernel.low_m,
                high_m: kernel.high_m,
                ranks: kernel.ranks,
                chosen: kernel.chosen != 0,
                nanoseconds: Some(kernel.nanoseconds).filter(|ns| *ns > 0),
            })
        };
        found.iter().map(kernel).collect()
    }

    fn kernel_choose(
        &mut self,
        rank: Option<u32>,
        operation: &str,
        name: &str,
        (low, high): (u32, u32),
    ) -> Result<(), Failure> {
        let choose = self.library.table.kernel_choose.ok_or(Failure::Unknown)?;
        let rank = rank.unwrap_or(abi::ALL_RANKS);
        check(|message| unsafe {
            choose(
                self.engine,
                rank,
                bytes(operation),
                bytes(name),
                low,
                high,
                message,
            )
        })
    }
}

impl Opened {
    /// Calls with room for [`MAX_LIST`] entries, and takes those that were written.
    fn list<T: Copy>(
        &self,
        blank: T,
        call: impl FnOnce(&Self, *mut T, *mut usize, *mut abi::Message) -> i32,
    ) -> Result<Vec<T>, Failure> {
        // Blank ones, not room alone: a driver may write fewer than it says.
        let mut found = vec![blank; MAX_LIST];
        let mut count = 0;
        check(|message| call(self, found.as_mut_ptr(), &raw mut count, message))?;
        if count > MAX_LIST {
            return Err(self.garbage(&format!("{count} entries: wanted at most {MAX_LIST}")));
        }
        found.truncate(count);
        Ok(found)
    }

    fn text(&self, bytes: abi::Bytes) -> Result<String, Failure> {
        if bytes.length == 0 {
            return Ok(String::new());
        }
        if bytes.data.is_null() || bytes.length > abi::NAME_BYTES {
            let (found, most) = (bytes.length, abi::NAME_BYTES);
            return Err(self.garbage(&format!("text of {found} bytes: wanted at most {most}")));
        }
        // SAFETY: the driver says that so many bytes are there, until the next call.
        let text = unsafe { std::slice::from_raw_parts(bytes.data.cast::<u8>(), bytes.length) };
        match std::str::from_utf8(text) {
            // They end up on terminals and in logs.
            Ok(text) if text.contains(char::is_control) => {
                Err(self.garbage(&format!("control characters in the text {text:?}")))
            }
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(self.garbage("text that is not UTF-8")),
        }
    }

    fn garbage(&self, what: &str) -> Failure {
        let path = self.library.path.display();
        Failure::unavailable(format!("{path} answers with nonsense: {what}"))
    }
}

pub(super) fn bytes(text: &str) -> abi::Bytes {
    abi::Bytes {
        data: text.as_ptr().cast(),
        length: text.len(),
    }
}

/// Makes a call whose words count only where it fails.
pub(super) fn check(call: impl FnOnce(*mut abi::Message) -> i32) -> Result<(), Failure> {
    said(call).map(drop)
}

/// Makes a call with room for a message, and reads its code. The text is a line: it ends up on terminals
/// and in logs; JSON stays what it is.
fn said(call: impl FnOnce(*mut abi::Message) -> i32) -> Result<String, Failure> {
    let mut text = [0u8; MESSAGE_BYTES];
    let mut message = abi::Message {
        data: text.as_mut_ptr().cast::<c_char>(),
        capacity: MESSAGE_BYTES,
        length: 0,
    };
    let code = call(&raw mut message);
    // Whatever it claims, no more than there is room for.
    let text = text.get(..message.length).unwrap_or(&text);
    let text = String::from_utf8_lossy(text).replace(char::is_control, " ");
    match code {
        abi::OK => Ok(text),
        abi::UNKNOWN => Err(Failure::Unknown),
        abi::UNAVAILABLE | abi::INVALID if !text.is_empty() => Err(Failure::Unavailable(text)),
        abi::UNAVAILABLE => Err(Failure::unavailable("the engine is not available")),
        abi::INVALID => Err(Failure::unavailable("the engine does not take that value")),
        code => Err(Failure::unavailable(format!(
            "the driver answers with code {code}: {text}"
        ))),
    }
}
