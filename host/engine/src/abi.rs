//! `include/pointsman_engine.h` in Rust, field by field; what each means stands there.

#![allow(missing_docs)]

use std::ffi::c_char;

/// The version that this host speaks.
pub const VERSION: u32 = 1;
/// The function that a driver exports.
pub const SYMBOL: &str = "pointsman_engine_v1";
pub const ALL_RANKS: u32 = u32::MAX;
pub const NAME_BYTES: usize = 256;
pub const TRACE_BYTES: u64 = 64 << 20;

pub const OK: i32 = 0;
pub const UNKNOWN: i32 = 1;
pub const UNAVAILABLE: i32 = 2;
pub const INVALID: i32 = 3;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Bytes {
    pub data: *const c_char,
    pub length: usize,
}

#[repr(C)]
#[derive(Debug)]
pub struct Message {
    pub data: *mut c_char,
    pub capacity: usize,
    pub length: usize,
}

/// An opaque handle.
#[repr(C)]
#[derive(Debug)]
pub struct Engine {
    _opaque: [u8; 0],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Knob {
    pub name: Bytes,
    pub unit: Bytes,
    pub low: i64,
    pub high: i64,
    pub value: i64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    pub name: Bytes,
    pub low_m: u32,
    pub high_m: u32,
    pub ranks: u32,
    pub chosen: u32,
    pub nanoseconds: u64,
}

impl Bytes {
    pub const EMPTY: Self = Self {
        data: std::ptr::null(),
        length: 0,
    };
}

impl Knob {
    pub const BLANK: Self = Self {
        name: Bytes::EMPTY,
        unit: Bytes::EMPTY,
        low: 0,
        high: 0,
        value: 0,
    };
}

impl Kernel {
    pub const BLANK: Self = Self {
        name: Bytes::EMPTY,
        low_m: 0,
        high_m: 0,
        ranks: 0,
        chosen: 0,
        nanoseconds: 0,
    };
}

pub type Open = unsafe extern "C" fn(Bytes, *mut *mut Engine, *mut Message) -> i32;
pub type Close = unsafe extern "C" fn(*mut Engine);
pub type Ranks = unsafe extern "C" fn(*mut Engine, *mut u32, *mut Message) -> i32;
pub type Knobs =
    unsafe extern "C" fn(*mut Engine, u32, *mut Knob, usize, *mut usize, *mut Message) -> i32;
pub type KnobGet = unsafe extern "C" fn(*mut Engine, u32, Bytes, *mut i64, *mut Message) -> i32;
pub type KnobSet = unsafe extern "C" fn(*mut Engine, u32, Bytes, i64, *mut Message) -> i32;
pub type Stat = unsafe extern "C" fn(*mut Engine, u32, Bytes, *mut f64, *mut Message) -> i32;
pub type Profile = unsafe extern "C" fn(*mut Engine, *mut Message) -> i32;
pub type Kernels = unsafe extern "C" fn(
    *mut Engine,
    u32,
    Bytes,
    *mut Kernel,
    usize,
    *mut usize,
    *mut Message,
) -> i32;
pub type KernelChoose =
    unsafe extern "C" fn(*mut Engine, u32, Bytes, Bytes, u32, u32, *mut Message) -> i32;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Table {
    pub size: usize,
    pub version: u32,
    pub reserved: u32,
    pub open: Option<Open>,
    pub close: Option<Close>,
    pub ranks: Option<Ranks>,
    pub knobs: Option<Knobs>,
    pub knob_get: Option<KnobGet>,
    pub knob_set: Option<KnobSet>,
    pub stat: Option<Stat>,
    pub profile_start: Option<Profile>,
    pub profile_stop: Option<Profile>,
    pub kernels: Option<Kernels>,
    pub kernel_choose: Option<KernelChoose>,
    pub profile_read: Option<ProfileRead>,
}

pub type ProfileRead = unsafe extern "C" fn(
    *mut Engine,
    u32,
    u64,
    *mut c_char,
    usize,
    *mut usize,
    *mut Message,
) -> i32;

pub type EntryPoint = unsafe extern "C" fn() -> *const Table;
