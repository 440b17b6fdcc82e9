//! A look at a library's file before the system's loader gets it.
//!
//! The loader maps what the file's headers promise and believes them: with a file that is cut, or whose
//! headers are damaged, it ends the whole process (SIGBUS, SIGSEGV) where an error was due. So what it is
//! going to rely on is compared first: segments with the length of the file, sections with segments, the
//! dynamic table with both. A file that is damaged elsewhere, in its code, passes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use object::elf::{
    DT_NULL, Dyn64, ELFCLASS64, ELFDATA2LSB, ELFDATA2MSB, ELFMAG, EM_AARCH64, EM_RISCV, EM_X86_64,
    ET_DYN, FileHeader64, PF_W, PF_X, PT_DYNAMIC, PT_GNU_RELRO, PT_LOAD, ProgramHeader64,
    SHF_ALLOC, SHF_EXECINSTR, SHF_TLS, SHF_WRITE, SHT_NOBITS, SectionHeader64,
};
use object::endian::NativeEndian;
use object::pod::{Pod, slice_from_all_bytes};

/// Why a file is no library that can be loaded.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system's.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A folder, a pipe, a device.
    #[error("wanted a regular file")]
    Irregular,
    /// Something else, or of another machine.
    #[error(
        "wanted a shared library (ELF) for {}, found {found}",
        std::env::consts::ARCH
    )]
    Other {
        /// What it is.
        found: String,
    },
    /// It ends too early.
    #[error(
        "it is cut: {what} ends at byte {wanted}, the file at {found}; copy it anew, and rename it into place"
    )]
    Cut {
        /// The part that ends behind the file.
        what: String,
        /// Where that ends.
        wanted: u64,
        /// Length of the file.
        found: u64,
    },
    /// Its headers contradict each other.
    #[error("its headers are damaged: {0}; build it anew, and rename it into place")]
    Damaged(String),
}

const NATIVE: NativeEndian = NativeEndian {};
/// The tables of the largest library have less, bytes.
const TABLE_BYTES: u64 = 16 << 20;

/// The file, and how long it is.
struct Bytes {
    file: File,
    length: u64,
}

/// Whether the system's loader can be trusted with it.
pub(super) fn check(path: &Path) -> Result<(), FileError> {
    // Before it is opened: that waits for a writer if it is a pipe.
    if !std::fs::metadata(path)?.is_file() {
        return Err(FileError::Irregular);
    }
    let file = File::open(path)?;
    let about = file.metadata()?;
    if !cfg!(all(target_os = "linux", target_pointer_width = "64")) {
        return Ok(());
    }
    let bytes = Bytes {
        file,
        length: about.len(),
    };
    let header = bytes.header()?;
    let segments: Vec<ProgramHeader64<NativeEndian>> = bytes.table(
        "the table of segments",
        header.e_phoff.get(NATIVE),
        u64::from(header.e_phnum.get(NATIVE)),
        header.e_phentsize.get(NATIVE),
    )?;
    let loads = loads(&segments, bytes.length)?;
    let sections: Vec<SectionHeader64<NativeEndian>> = match header.e_shoff.get(NATIVE) {
        0 => Vec::new(),
        at => bytes.table(
            "the table of sections",
            at,
            u64::from(header.e_shnum.get(NATIVE)),
            header.e_shentsize.get(NATIVE),
        )?,
    };
    for section in &sections {
        agrees(section, &loads)?;
    }
    for segment in &segments {
        if segment.p_type.get(NATIVE) == PT_GNU_RELRO {
            turns_read_only(segment, &loads)?;
        }
    }
    let dynamic = segments.iter().find(|s| s.p_type.get(NATIVE) == PT_DYNAMIC);
    let dynamic = dynamic.ok_or_else(|| damaged("wanted a dynamic table, found none"))?;
    bytes.dynamic(dynamic, &loads)
}

/// A part of the file that is mapped.
struct Load {
    address: u64,
    in_memory: u64,
    in_file: u64,
    offset: u64,
    flags: u32,
}

impl Load {
    /// Whether `length` bytes at `address` are in it; `mapped`: come from the file.
    fn holds(&self, address: u64, length: u64, mapped: bool) -> bool {
        let size = if mapped { self.in_file } else { self.in_memory };
        let from = address.checked_sub(self.address);
        from.and_then(|from| from.checked_add(length))
            .is_some_and(|end| end <= size)
    }
}

impl Bytes {
    fn read<T: Pod>(&self, what: &str, at: u64, length: u64) -> Result<Vec<T>, FileError> {
        let wanted = at.saturating_add(length);
        if wanted > self.length {
            return Err(FileError::Cut {
                what: what.to_owned(),
                wanted,
                found: self.length,
            });
        }
        if length > TABLE_BYTES {
            return Err(damaged(&format!("{what} has {length} bytes")));
        }
        let size = usize::try_from(length).unwrap_or(0);
        // Words, so that what is read out of them is aligned.
        let mut words = vec![0u64; size.div_ceil(8)];
        let bytes = object::pod::bytes_of_slice_mut(&mut words);
        let bytes = bytes.get_mut(..size).unwrap_or_default();
        self.file.read_exact_at(bytes, at)?;
        let all = slice_from_all_bytes::<T>(bytes);
        Ok(all
            .map_err(|()| damaged(&format!("{what} is no whole number of entries")))?
            .to_vec())
    }

    fn header(&self) -> Result<FileHeader64<NativeEndian>, FileError> {
        let mut start = [0; 16];
        let there = usize::try_from(self.length.min(16)).unwrap_or(0);
        let start = start.get_mut(..there).unwrap_or_default();
        self.file.read_exact_at(start, 0)?;
        let other = |found: &str| FileError::Other {
            found: found.to_owned(),
        };
        if self.length == 0 {
            return Err(other("an empty file"));
        }
        if !start.starts_with(&ELFMAG) {
            return Err(other("something else"));
        }
        let native = if cfg!(target_endian = "little") {
            ELFDATA2LSB
        } else {
            ELFDATA2MSB
        };
        // EI_CLASS and EI_DATA.
        let of = |at: usize| start.get(at).copied();
        if of(4) != Some(ELFCLASS64) || of(5) != Some(native) {
            return Err(other("one of another word size or byte order"));
        }
        let size = size_of::<FileHeader64<NativeEndian>>() as u64;
        let header: Vec<FileHeader64<NativeEndian>> = self.read("the header", 0, size)?;
        let header = header.first().ok_or_else(|| damaged("there is none"))?;
        let (machine, kind) = (header.e_machine.get(NATIVE), header.e_type.get(NATIVE));
        let native = if cfg!(target_arch = "x86_64") {
            EM_X86_64
        } else if cfg!(target_arch = "aarch64") {
            EM_AARCH64
        } else if cfg!(target_arch = "riscv64") {
            EM_RISCV
        } else {
            machine
        };
        if machine != native {
            return Err(other(&format!("one for the machine {}", machine)));
        }
        if kind != ET_DYN {
            return Err(other(&format!(
                "another kind of ELF file ({}): link it with -shared",
                kind
            )));
        }
        Ok(*header)
    }

    fn table<T: Pod>(
        &self,
        what: &str,
        at: u64,
        count: u64,
        entry: u16,
    ) -> Result<Vec<T>, FileError> {
        let size = size_of::<T>() as u64;
        if u64::from(entry) != size || count == 0 {
            return Err(damaged(&format!(
                "{what}: wanted entries of {size} bytes, found {count} of {entry}"
            )));
        }
        self.read(what, at, count * size)
    }

    /// Every entry of the dynamic table that is an address points into the library.
    fn dynamic(
        &self,
        segment: &ProgramHeader64<NativeEndian>,
        loads: &[Load],
    ) -> Result<(), FileError> {
        let (at, size) = (segment.p_vaddr.get(NATIVE), segment.p_filesz.get(NATIVE));
        let load = loads.iter().find(|load| load.holds(at, size, true));
        let load = load.ok_or_else(|| damaged("the dynamic table is in no segment"))?;
        let offset = load.offset + (at - load.address);
        if offset != segment.p_offset.get(NATIVE) || segment.p_memsz.get(NATIVE) != size {
            return Err(damaged("the dynamic table is not where its segment is"));
        }
        let entries: Vec<Dyn64<NativeEndian>> = self.read("the dynamic table", offset, size)?;
        let entries: Vec<(i64, u64)> = (entries.iter())
            .map(|entry| (entry.d_tag.get(NATIVE), entry.d_val.get(NATIVE)))
            .collect();
        let ends = entries.iter().position(|(tag, _)| *tag == DT_NULL);
        let ends = ends.ok_or_else(|| damaged("the dynamic table does not end"))?;
        let used = entries.get(..ends).unwrap_or_default();
        let value = |tag: i64| {
            used.iter()
                .find(|(of, _)| *of == tag)
                .map(|(_, value)| *value)
        };
        // Address, length (0: not said in the table), whether it must be there, and what it is.
        const WANTED: [(i64, i64, bool, &str); 12] = [
            (5, 10, true, "strings"),
            (6, 0, true, "symbols"),
            (4, 0, false, "hash table"),
            (0x6fff_fef5, 0, false, "hash table"),
            (7, 8, false, "relocations"),
            (23, 2, false, "relocations of calls"),
            (36, 35, false, "relative relocations"),
            (25, 27, false, "initialisers"),
            (26, 28, false, "finalisers"),
            (12, 0, false, "initialiser"),
            (13, 0, false, "finaliser"),
            (0x6fff_fff0, 0, false, "versions of symbols"),
        ];
        for (tag, length, must, what) in WANTED {
            let Some(address) = value(tag) else {
                if must {
                    return Err(damaged(&format!("the dynamic table names no {what}")));
                }
                continue;
            };
            let length = match length {
                0 => 1,
                tag => value(tag).ok_or_else(|| damaged(&format!("no length of the {what}")))?,
            };
            if !loads.iter().any(|load| load.holds(address, length, false)) {
                return Err(damaged(&format!("the {what} are outside of the library")));
            }
        }
        Ok(())
    }
}

/// The mapped segments, each within the file, in order, none over another.
fn loads(segments: &[ProgramHeader64<NativeEndian>], length: u64) -> Result<Vec<Load>, FileError> {
    let mut loads: Vec<Load> = Vec::new();
    for (segment, n) in segments.iter().zip(0..) {
        if segment.p_type.get(NATIVE) != PT_LOAD {
            continue;
        }
        let load = Load {
            address: segment.p_vaddr.get(NATIVE),
            in_memory: segment.p_memsz.get(NATIVE),
            in_file: segment.p_filesz.get(NATIVE),
            offset: segment.p_offset.get(NATIVE),
            flags: segment.p_flags.get(NATIVE),
        };
        let wanted = load.offset.saturating_add(load.in_file);
        if wanted > length {
            return Err(FileError::Cut {
                what: format!("segment {n}"),
                wanted,
                found: length,
            });
        }
        let align = segment.p_align.get(NATIVE);
        let aligned =
            align.is_power_of_two() && align >= 4096 && load.address % align == load.offset % align;
        let end = load.address.checked_add(load.in_memory);
        let after = loads
            .last()
            .is_none_or(|before| before.address.saturating_add(before.in_memory) <= load.address);
        if !aligned || end.is_none() || !after || load.in_file > load.in_memory {
            return Err(damaged(&format!("segment {n} cannot be mapped")));
        }
        loads.push(load);
    }
    if loads.is_empty() {
        return Err(damaged("wanted segments to load, found none"));
    }
    Ok(loads)
}

/// What is read-only once it is relocated lies in a writable segment, and no further than the page that
/// it ends in: what is written to later would follow.
fn turns_read_only(
    segment: &ProgramHeader64<NativeEndian>,
    loads: &[Load],
) -> Result<(), FileError> {
    let (at, in_file) = (segment.p_vaddr.get(NATIVE), segment.p_filesz.get(NATIVE));
    let load = loads.iter().find(|load| load.holds(at, in_file, true));
    let page = if cfg!(target_arch = "x86_64") {
        4096
    } else {
        65_536
    };
    let fits = load.is_some_and(|load| {
        let ends = at.saturating_add(in_file).checked_next_multiple_of(page);
        let offset = segment.p_offset.get(NATIVE);
        let size = segment.p_memsz.get(NATIVE);
        load.flags & PF_W != 0
            && offset == load.offset + (at - load.address)
            && ends.is_some_and(|ends| size >= in_file && size <= ends - at)
    });
    if fits {
        return Ok(());
    }
    Err(damaged("the read-only part is not where its segment is"))
}

/// What a linker says of a section and of the segment that it is in is said twice, and the same.
fn agrees(section: &SectionHeader64<NativeEndian>, loads: &[Load]) -> Result<(), FileError> {
    let flags = section.sh_flags.get(NATIVE);
    let has = |flag: u32| flags & u64::from(flag) != 0;
    let no_bits = section.sh_type.get(NATIVE) == SHT_NOBITS;
    if !has(SHF_ALLOC) || (no_bits && has(SHF_TLS)) {
        return Ok(());
    }
    let (address, size) = (section.sh_addr.get(NATIVE), section.sh_size.get(NATIVE));
    let load = loads.iter().find(|load| load.holds(address, size, false));
    let fits = load.is_some_and(|load| {
        let writable = !has(SHF_WRITE) || load.flags & PF_W != 0;
        let executable = !has(SHF_EXECINSTR) || load.flags & PF_X != 0;
        let offset = section.sh_offset.get(NATIVE);
        let there = no_bits
            || (load.holds(address, size, true)
                && offset == load.offset + (address - load.address));
        writable && executable && there
    });
    if fits {
        return Ok(());
    }
    Err(damaged(&format!(
        "the section at {address:#x} is in no segment that fits it"
    )))
}

fn damaged(what: &str) -> FileError {
    FileError::Damaged(what.to_owned())
}
