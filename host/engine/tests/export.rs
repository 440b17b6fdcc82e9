//! A driver in Rust, through the C ABI and back.

#![allow(clippy::unwrap_used, clippy::panic)]

use pointsman_engine::{Driver, Failure, Kernel, Knob, Library, Open, abi, table};

/// Remembers what it was told.
struct Mine {
    config: String,
    set: Option<(Option<u32>, String, i64)>,
}

impl Open for Mine {
    fn open(config: &str) -> Result<Self, Failure> {
        match config {
            "panic" => panic!("on purpose"),
            "refuse" => Err(Failure::Unavailable("no such device".into())),
            _ => Ok(Mine {
                config: config.into(),
                set: None,
            }),
        }
    }
}

impl Driver for Mine {
    fn ranks(&mut self) -> Result<u32, Failure> {
        Ok(self.config.len() as u32)
    }

    fn knobs(&mut self, rank: u32) -> Result<Vec<Knob>, Failure> {
        let knob = |i: i64| Knob {
            name: format!("k{i}"),
            unit: "µs".into(),
            low: i64::MIN,
            high: i64::MAX,
            value: i,
        };
        Ok((0..i64::from(rank)).map(knob).collect())
    }

    fn knob_get(&mut self, rank: u32, name: &str) -> Result<i64, Failure> {
        match (name, &self.set) {
            ("panic", _) => panic!("on purpose"),
            ("long", _) => Err(Failure::Unavailable("x".repeat(5000))),
            (name, Some((to, set, value))) if set == name && to.is_none_or(|to| to == rank) => {
                Ok(*value)
            }
            _ => Err(Failure::Unknown),
        }
    }

    fn knob_set(&mut self, rank: Option<u32>, name: &str, value: i64) -> Result<(), Failure> {
        self.set = Some((rank, name.into(), value));
        Ok(())
    }

    fn stat(&mut self, _rank: u32, name: &str) -> Result<f64, Failure> {
        name.parse().map_err(|_| Failure::Unknown)
    }

    fn profile_stop(&mut self) -> Result<String, Failure> {
        Ok("there".into())
    }

    fn profile_trace(&mut self, rank: u32) -> Result<Vec<u8>, Failure> {
        match rank {
            0 => Ok(vec![b'x'; 3 << 20]),
            1 => Ok(b"short".to_vec()),
            2 => panic!("on purpose"),
            _ => Err(Failure::Unknown),
        }
    }

    fn kernels(&mut self, _rank: u32, operation: &str) -> Result<Vec<Kernel>, Failure> {
        Ok(vec![Kernel {
            name: operation.into(),
            low_m: 1,
            high_m: 2,
            ranks: 8,
            chosen: true,
            nanoseconds: Some(9),
        }])
    }

    fn kernel_choose(
        &mut self,
        rank: Option<u32>,
        operation: &str,
        name: &str,
        (low, high): (u32, u32),
    ) -> Result<(), Failure> {
        Err(Failure::Unavailable(format!(
            "{rank:?} {operation} {name} {low} {high}"
        )))
    }
}

static TABLE: abi::Table = table::<Mine>();

fn library() -> Library {
    Library::linked(&TABLE, "mine").unwrap()
}

#[test]
fn what_is_said_on_one_side_is_heard_on_the_other() {
    let mut mine = library().open("four").unwrap();
    assert_eq!(mine.ranks(), Ok(4));
    let knobs = mine.knobs(3).unwrap();
    let last = Knob {
        name: "k2".into(),
        unit: "µs".into(),
        low: i64::MIN,
        high: i64::MAX,
        value: 2,
    };
    assert_eq!((knobs.len(), knobs.last()), (3, Some(&last)));
    assert_eq!(
        mine.knobs(9999).unwrap().len(),
        256,
        "no more than there is room for"
    );
    mine.knob_set(Some(2), "x", -5).unwrap();
    assert_eq!(
        (mine.knob_get(2, "x"), mine.knob_get(1, "x")),
        (Ok(-5), Err(Failure::Unknown))
    );
    mine.knob_set(None, "", i64::MIN).unwrap();
    assert_eq!(mine.knob_get(7, ""), Ok(i64::MIN));
    assert_eq!(mine.stat(0, "2.5"), Ok(2.5));
    assert_eq!(mine.profile_start(), Err(Failure::Unknown));
    assert_eq!(mine.profile_stop(), Ok("there".into()));
    assert_eq!(mine.profile_trace(0), Ok(vec![b'x'; 3 << 20]));
    assert_eq!(mine.profile_trace(1), Ok(b"short".to_vec()));
    assert!(matches!(
        mine.profile_trace(2),
        Err(Failure::Unavailable(_))
    ));
    assert_eq!(mine.profile_trace(3), Err(Failure::Unknown));
    let kernel = mine.kernels(0, "bmm").unwrap().pop().unwrap();
    assert_eq!(
        (kernel.name.as_str(), kernel.chosen, kernel.nanoseconds),
        ("bmm", true, Some(9))
    );
    assert_eq!(
        mine.kernel_choose(None, "bmm", "tiled", (3, 4)),
        Err(Failure::Unavailable("None bmm tiled 3 4".into()))
    );
}

#[test]
fn a_panic_is_an_error_and_long_words_are_cut() {
    let mut mine = library().open("four").unwrap();
    let panicked = Err(Failure::Unavailable("the driver panicked".into()));
    assert_eq!(mine.knob_get(0, "panic"), panicked);
    assert_eq!(mine.ranks(), Ok(4), "it goes on");
    assert_eq!(
        mine.knob_get(0, "long"),
        Err(Failure::Unavailable("x".repeat(1024)))
    );
    assert_eq!(library().open("panic").map(drop), panicked.map(drop));
    assert_eq!(
        library().open("refuse").map(drop),
        Err(Failure::Unavailable("no such device".into()))
    );
}
