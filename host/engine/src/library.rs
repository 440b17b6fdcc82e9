//! Shared libraries behind the C ABI: loading, and calls that are checked at the boundary.
//!
//! What a driver can get wrong in a way that can be seen (versions, lengths, codes, text) is an
//! error here. What cannot be seen (a pointer into nowhere) is the driver's bug in our process.

mod file;
mod opened;

use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

use crate::abi;
use crate::driver::{Driver, Failure};
pub use file::FileError;
use libloading::os::unix::{Library as System, RTLD_LOCAL, RTLD_NOW};
use opened::{Opened, bytes, check};

/// Why a library is no driver. To blame: the driver, or the path.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is none that the system's loader could be trusted with: that would end the process.
    #[error("cannot load {path}: {source}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: FileError,
    },
    /// The system's loader refuses.
    #[error("cannot load {path}: {}", words(source))]
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

/// The system's own, which name what is missing.
fn words(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(why) => format!("{error}: {why}"),
        None => error.to_string(),
    }
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
    profile_read: Option<abi::ProfileRead>,
}

impl Library {
    /// Loads a driver: this file, and none of the same name that the system knows of.
    ///
    /// Code in the library runs from here on: load none that you would not link.
    ///
    /// # Errors
    /// It cannot be loaded, or is no driver for this host.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref();
        let name = path.to_owned();
        file::check(path).map_err(|source| LoadError::File {
            path: name.clone(),
            source,
        })?;
        // SAFETY: initialisers of the library run. That is what loading a driver means; whoever
        // names the file answers for it.
        // All symbols now: one that is missing would end the process at its first call.
        let library =
            unsafe { System::open(Some(Path::new(".").join(path)), RTLD_NOW | RTLD_LOCAL) };
        let library = library
            .map(libloading::Library::from)
            .map_err(|source| LoadError::Load {
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
            profile_read: table.profile_read,
        })
    }
}
