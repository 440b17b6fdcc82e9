//! Shared libraries behind the C ABI: loading, and calls that are checked at the boundary.
//!
//! What a driver can get wrong in a way that can be seen (versions, lengths, codes, text) is an
//! error here. What cannot be seen (a pointer into nowhere) is the driver's bug in our process.

use std::ffi::c_char;
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

use crate::abi;
use crate::driver::{Driver, Failure, Kernel, Knob};

/// Of an error's text, bytes.
const MESSAGE_BYTES: usize = 1024;
/// Knobs of a rank, kernels of an operation.
const MAX_LIST: usize = 256;
/// Ranks of an engine.
const MAX_RANKS: u32 = 65_536;

/// Why a library is no driver. To blame: the driver, or the path.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The system's loader refuses.
    #[error("cannot load {path}: {source}")]
    Load {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: libloading::Error,
    },
    /// No such function.
    #[error(
        "{path} is no engine driver for this host: wanted the function `{}`, found none; see \
         pointsman_engine.h",
        abi::SYMBOL
    )]
    MissingSymbol {
        /// Which file.
        path: PathBuf,
    },
    /// The function has no table.
    #[error("{path}: `{}` returned no table", abi::SYMBOL)]
    NoTable {
        /// Which file.
        path: PathBuf,
    },
    /// Another version.
    #[error(
        "{path}: wanted a table of version {}, found {found}; build it against this host's pointsman_engine.h",
        abi::VERSION
    )]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// Too short for what every driver has.
    #[error(
        "{path}: wanted a table of at least {wanted} bytes, found {found}; build it against this host's pointsman_engine.h"
    )]
    ShortTable {
        /// Which file.
        path: PathBuf,
        /// Bytes up to the last function that every driver has.
        wanted: usize,
        /// What it says of itself.
        found: usize,
    },
    /// A function that every driver has is null.
    #[error("{path}: wanted the function `{function}` in its table, found null")]
    MissingFunction {
        /// Which file.
        path: PathBuf,
        /// Which function.
        function: &'static str,
    },
}

/// A driver that is loaded. Stays loaded while an engine of it is open.
#[derive(Debug, Clone)]
pub struct Library {
    table: Functions,
    path: Arc<Path>,
    /// Last: the table is in there. None: linked in.
    _library: Option<Arc<libloading::Library>>,
}

/// The table, with what every driver has.
#[derive(Debug, Clone, Copy)]
struct Functions {
    open: abi::Open,
    close: abi::Close,
    ranks: abi::Ranks,
    knobs: abi::Knobs,
    knob_get: abi::KnobGet,
    knob_set: abi::KnobSet,
    stat: abi::Stat,
    profile_start: Option<abi::Profile>,
    profile_stop: Option<abi::Profile>,
    kernels: Option<abi::Kernels>,
    kernel_choose: Option<abi::KernelChoose>,
}

impl Library {
    /// Loads a driver; a path without `/` is searched where the system searches libraries.
    ///
    /// Code in the library runs from here on: load none that you would not link.
    ///
    /// # Errors
    /// It cannot be loaded, or is no driver for this host.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref();
        let name = path.to_owned();
        // SAFETY: initialisers of the library run. That is what loading a driver means; whoever
        // names the file answers for it.
        let library = unsafe { libloading::Library::new(path) };
        let library = library.map_err(|source| LoadError::Load {
            path: name.clone(),
            source,
        })?;
        // SAFETY: the header gives the symbol its type.
        let entry = unsafe { library.get::<abi::EntryPoint>(abi::SYMBOL) };
        let Ok(entry) = entry else {
            return Err(LoadError::MissingSymbol { path: name });
        };
        // SAFETY: as declared in the header: no arguments, any thread.
        let table = unsafe { entry() };
        let table = read(table, path)?;
        Ok(Self {
            table: Functions::of(&table, path)?,
            path: path.into(),
            _library: Some(Arc::new(library)),
        })
    }

    /// A driver that is linked in; `name` is for people.
    ///
    /// # Errors
    /// It is no driver for this host.
    pub fn linked(table: &'static abi::Table, name: &str) -> Result<Self, LoadError> {
        let path = Path::new(name);
        Ok(Self {
            table: Functions::of(&read(table, path)?, path)?,
            path: path.into(),
            _library: None,
        })
    }

    /// An engine of this driver. On the thread that will use it.
    ///
    /// # Errors
    /// The driver's own.
    pub fn open(&self, config: &str) -> Result<impl Driver + use<>, Failure> {
        let mut engine = ptr::null_mut();
        // SAFETY: the arguments are as the header wants them and live through the call.
        check(|message| unsafe { (self.table.open)(bytes(config), &raw mut engine, message) })?;
        if engine.is_null() {
            let path = self.path.display();
            return Err(Failure::unavailable(format!(
                "{path}: `open` gave no engine"
            )));
        }
        Ok(Opened {
            engine,
            library: self.clone(),
        })
    }
}

/// Copies what there is of the table; the rest is null.
fn read(table: *const abi::Table, path: &Path) -> Result<abi::Table, LoadError> {
    let path = || path.to_owned();
    if table.is_null() || !table.is_aligned() {
        return Err(LoadError::NoTable { path: path() });
    }
    // SAFETY: every table begins with its size and version, whatever its version.
    let (size, version) = unsafe { ((*table).size, (*table).version) };
    if version != abi::VERSION {
        return Err(LoadError::Version {
            path: path(),
            found: version,
        });
    }
    let wanted = offset_of!(abi::Table, profile_start);
    if size < wanted {
        return Err(LoadError::ShortTable {
            path: path(),
            wanted,
            found: size,
        });
    }
    // SAFETY: all zero is a table without functions; the driver's is at least `size` bytes long,
    // and only whole functions are taken.
    unsafe {
        let mut copy: abi::Table = std::mem::zeroed();
        let pointer = size_of::<Option<abi::Profile>>();
        let there = size.min(size_of::<abi::Table>()) / pointer * pointer;
        ptr::copy_nonoverlapping(table.cast::<u8>(), (&raw mut copy).cast(), there);
        Ok(copy)
    }
}

impl Functions {
    fn of(table: &abi::Table, path: &Path) -> Result<Self, LoadError> {
        let missing = |function| LoadError::MissingFunction {
            path: path.to_owned(),
            function,
        };
        Ok(Self {
            open: table.open.ok_or_else(|| missing("open"))?,
            close: table.close.ok_or_else(|| missing("close"))?,
            ranks: table.ranks.ok_or_else(|| missing("ranks"))?,
            knobs: table.knobs.ok_or_else(|| missing("knobs"))?,
            knob_get: table.knob_get.ok_or_else(|| missing("knob_get"))?,
            knob_set: table.knob_set.ok_or_else(|| missing("knob_set"))?,
            stat: table.stat.ok_or_else(|| missing("stat"))?,
            profile_start: table.profile_start,
            profile_stop: table.profile_stop,
            kernels: table.kernels,
            kernel_choose: table.kernel_choose,
        })
    }
}

/// An engine that a driver opened; not `Send`: it stays on its thread.
struct Opened {
    engine: *mut abi::Engine,
    library: Library,
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
            Ok(Knob {
                name: self.text(knob.name)?,
                unit: self.text(knob.unit)?,
                low: knob.low,
                high: knob.high,
                value: knob.value,
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
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(self.garbage("text that is not UTF-8")),
        }
    }

    fn garbage(&self, what: &str) -> Failure {
        let path = self.library.path.display();
        Failure::unavailable(format!("{path} answers with nonsense: {what}"))
    }
}

fn bytes(text: &str) -> abi::Bytes {
    abi::Bytes {
        data: text.as_ptr().cast(),
        length: text.len(),
    }
}

/// Makes a call whose words count only where it fails.
fn check(call: impl FnOnce(*mut abi::Message) -> i32) -> Result<(), Failure> {
    said(call).map(drop)
}

/// Makes a call with room for a message, and reads its code.
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
    let text = String::from_utf8_lossy(text).into_owned();
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
