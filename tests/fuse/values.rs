// Values of every kind, from a seed, and how they read. Included where bindings of `test:torture` are in
// scope as `Shape`, `Point`, `Color`, `Perms`: in the adapter (wit-bindgen) and in the test (wasmtime).

/// splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn list<T>(&mut self, most: u64, mut one: impl FnMut(&mut Random) -> T) -> Vec<T> {
        (0..self.below(most + 1)).map(|_| one(self)).collect()
    }

    fn option<T>(&mut self, one: impl FnOnce(&mut Random) -> T) -> Option<T> {
        (self.below(3) > 0).then(|| one(self))
    }

    /// Any scalar value, those at the edges of the ranges more often.
    pub fn char(&mut self) -> char {
        const EDGES: [u32; 9] = [
            0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10_FFFF,
        ];
        let wanted = match self.below(3) {
            0 => EDGES[self.below(9) as usize],
            1 => self.below(0x80) as u32,
            _ => self.below(0x11_0000) as u32,
        };
        char::from_u32(wanted).unwrap_or('\u{FFFD}')
    }

    pub fn string(&mut self) -> String {
        self.list(40, Random::char).into_iter().collect()
    }

    pub fn f32(&mut self) -> f32 {
        let value = f32::from_bits(self.next() as u32);
        if value.is_nan() { f32::INFINITY } else { value }
    }

    pub fn f64(&mut self) -> f64 {
        let value = f64::from_bits(self.next());
        if value.is_nan() {
            f64::NEG_INFINITY
        } else {
            value
        }
    }

    fn tag(&mut self) -> Option<Option<u8>> {
        self.option(|r| r.option(|r| r.next() as u8))
    }

    fn color(&mut self) -> Color {
        [Color::Red, Color::Green, Color::Blue][self.below(3) as usize]
    }

    fn perms(&mut self) -> Perms {
        let mut perms = Perms::empty();
        for perm in PERMS {
            if self.below(2) == 0 {
                perms |= perm;
            }
        }
        perms
    }

    fn point(&mut self) -> Point {
        Point {
            x: self.f32(),
            y: self.f64(),
            tag: self.tag(),
        }
    }

    fn shape(&mut self) -> Shape {
        match self.below(6) {
            0 => Shape::None,
            1 => Shape::Circle(self.f64()),
            2 => Shape::Polygon(self.list(5, |r| (r.string(), r.next() as u32))),
            3 => Shape::Named(self.point()),
            4 => Shape::Colored((self.color(), self.perms())),
            _ => Shape::Nested(self.list(4, |r| r.option(|r| r.list(20, |r| r.next() as u8)))),
        }
    }
}

const PERMS: [Perms; 9] = [
    Perms::A,
    Perms::B,
    Perms::C,
    Perms::D,
    Perms::E,
    Perms::F,
    Perms::G,
    Perms::H,
    Perms::I,
];

/// The parameters of `turn`, and its results.
pub type All = (
    Vec<Shape>,
    Color,
    Perms,
    Option<Option<u8>>,
    char,
    Vec<u8>,
    i8,
    f32,
    Result<Vec<String>, Color>,
    Point,
    i64,
    String,
);

pub fn all(seed: u64) -> All {
    let mut r = Random(seed);
    (
        r.list(8, Random::shape),
        r.color(),
        r.perms(),
        r.tag(),
        r.char(),
        r.list(300, |r| r.next() as u8),
        r.next() as i8,
        r.f32(),
        if r.below(2) == 0 {
            Ok(r.list(6, Random::string))
        } else {
            Err(r.color())
        },
        r.point(),
        r.next() as i64,
        r.string(),
    )
}

/// What the host does for the policy.
pub fn mirror(mut shapes: Vec<Shape>) -> Vec<Shape> {
    shapes.reverse();
    shapes
}

/// As above.
pub fn note(text: &str, n: u64) -> Option<Option<String>> {
    match n % 3 {
        0 => None,
        1 => Some(None),
        _ => Some(Some(format!("{text}\u{10FFFF}{n}"))),
    }
}

/// How all of them read; floats by their bits.
pub fn text(all: &All) -> String {
    let (a, b, c, d, e, f, g, h, i, j, k, l) = all;
    let shapes: Vec<String> = a.iter().map(shape_text).collect();
    let i = match i {
        Ok(list) => format!("ok {list:?}"),
        Err(color) => format!("err {}", color_text(color)),
    };
    format!(
        "{shapes:?} {} {} {d:?} {e:?} {f:?} {g} {} {i} {} {k} {l:?}",
        color_text(b),
        perms_text(c),
        h.to_bits(),
        point_text(j),
    )
}

fn color_text(color: &Color) -> &'static str {
    match color {
        Color::Red => "red",
        Color::Green => "green",
        Color::Blue => "blue",
    }
}

fn perms_text(perms: &Perms) -> String {
    (PERMS.iter().zip("abcdefghi".chars()))
        .filter(|(perm, _)| (*perms & **perm) == **perm)
        .map(|(_, letter)| letter)
        .collect()
}

fn point_text(point: &Point) -> String {
    format!(
        "({} {} {:?})",
        point.x.to_bits(),
        point.y.to_bits(),
        point.tag
    )
}

fn shape_text(shape: &Shape) -> String {
    match shape {
        Shape::None => "none".to_owned(),
        Shape::Circle(radius) => format!("circle {}", radius.to_bits()),
        Shape::Polygon(points) => format!("polygon {points:?}"),
        Shape::Named(point) => format!("named {}", point_text(point)),
        Shape::Colored((color, perms)) => {
            format!("colored {} {}", color_text(color), perms_text(perms))
        }
        Shape::Nested(lists) => format!("nested {lists:?}"),
    }
}
