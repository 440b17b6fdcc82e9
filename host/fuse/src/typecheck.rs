//! Whether both sides mean the same by every function that crosses.
//!
//! Core signatures do not tell: a record whose fields have changed places has the same one, fuses, and
//! hands over nonsense. So the WIT of both sides is compared by structure, down to the names of fields
//! and cases. A type's own name does not count.

use crate::Error;
use crate::adapter::{check_fixed, check_offered, check_taken};
use crate::limit;
use crate::module::CoreModule;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use wasmparser::{Parser, Payload};
use wit_component::DecodedWasm;
use wit_parser::decoding::decode_world;
use wit_parser::{
    Function, Handle, Resolve, Type, TypeDefKind, TypeId, WorldId, WorldItem, WorldKey,
};

/// Compares. WASI is passed over when it is to be stubbed.
pub(crate) fn check(component: &[u8], adapter: &[u8], stub_wasi: bool) -> Result<(), Error> {
    let module = CoreModule::read(adapter)?;
    check_fixed(&module)?;
    let decoded = wit_component::decode(component)
        .map_err(|error| Error::NoComponent(format!("one without readable types: {error:#}")))?;
    let DecodedWasm::Component(policy, policy_world) = decoded else {
        return Err(Error::NoComponent("a WIT package".to_owned()));
    };
    let worlds = adapter_worlds(adapter)?;

    let policy = Side::read(&policy, policy_world)?;
    let adapters: Vec<Side<'_>> = (worlds.iter())
        .map(|(resolve, world)| Side::read(resolve, *world))
        .collect::<Result<_, _>>()?;

    let wasi: Vec<&str> = (policy.imports.keys().map(String::as_str))
        .filter(|name| is_wasi(name))
        .collect();
    if !wasi.is_empty() && !stub_wasi {
        return Err(Error::Wasi(wasi.join(", ")));
    }
    if let Some(resource) = policy.resources.first() {
        return Err(Error::Resource(resource.clone()));
    }
    for (name, function) in policy.imports.iter().filter(|(name, _)| !is_wasi(name)) {
        let mut exports =
            (adapters.iter()).filter_map(|side| Some((side.resolve, *side.exports.get(name)?)));
        let other = (exports.next()).ok_or_else(|| Error::NoImport(name.clone()))?;
        compare(name, (policy.resolve, function), other)?;
        check_offered(&module, name, other)?;
    }
    for adapter in &adapters {
        for (name, other) in &adapter.imports {
            let Some(function) = policy.exports.get(name) else {
                return Err(Error::NoExport(name.clone()));
            };
            compare(name, (policy.resolve, function), (adapter.resolve, other))?;
            check_taken(&module, name, (adapter.resolve, other))?;
        }
    }
    Ok(())
}

/// The worlds that wit-bindgen has noted beside an adapter's code; each is left as it is, as joining
/// them would have the decoder recurse without end where packages use each other.
fn adapter_worlds(adapter: &[u8]) -> Result<Vec<(Resolve, WorldId)>, Error> {
    let unreadable = |error: &dyn std::fmt::Display| {
        Error::NoAdapter(format!("one whose types cannot be read: {error}"))
    };
    let mut worlds = Vec::new();
    for payload in Parser::new(0).parse_all(adapter) {
        if let Payload::CustomSection(section) = payload.map_err(|error| unreadable(&error))?
            && section.name().starts_with("component-type")
        {
            limit::types(section.data()).map_err(|error| unreadable(&error))?;
            worlds.push(decode_world(section.data()).map_err(|error| unreadable(&error))?);
        }
    }
    if worlds.is_empty() {
        return Err(Error::NoAdapter("one without types".to_owned()));
    }
    Ok(worlds)
}

/// Whether a function belongs to WASI.
pub(crate) fn is_wasi(name: &str) -> bool {
    name.starts_with("wasi:")
}

/// A world as functions.
struct Side<'a> {
    resolve: &'a Resolve,
    imports: BTreeMap<String, &'a Function>,
    exports: BTreeMap<String, &'a Function>,
    /// outside of WASI
    resources: BTreeSet<String>,
}

impl<'a> Side<'a> {
    fn read(resolve: &'a Resolve, world: WorldId) -> Result<Side<'a>, Error> {
        let no_world = || Error::internal("reading the types", "there is no world");
        let world = resolve.worlds.get(world).ok_or_else(no_world)?;
        let mut side = Side {
            resolve,
            imports: BTreeMap::new(),
            exports: BTreeMap::new(),
            resources: BTreeSet::new(),
        };
        side.imports = side.functions(world.imports.iter());
        side.exports = side.functions(world.exports.iter());
        Ok(side)
    }

    fn functions(
        &mut self,
        items: impl Iterator<Item = (&'a WorldKey, &'a WorldItem)>,
    ) -> BTreeMap<String, &'a Function> {
        let mut functions = BTreeMap::new();
        for (key, item) in items {
            let name = self.resolve.name_world_key(key);
            match item {
                WorldItem::Function(function) => {
                    functions.insert(name, function);
                }
                WorldItem::Interface { id, .. } => {
                    let Some(interface) = self.resolve.interfaces.get(*id) else {
                        continue;
                    };
                    for (function, value) in &interface.functions {
                        functions.insert(format!("{name}#{function}"), value);
                    }
                    for (ty, id) in &interface.types {
                        self.note_resource(&format!("{name}#{ty}"), *id);
                    }
                }
                WorldItem::Type { id, .. } => self.note_resource(&name, *id),
            }
        }
        functions
    }

    fn note_resource(&mut self, name: &str, id: TypeId) {
        let kind = self.resolve.types.get(id).map(|ty| &ty.kind);
        if matches!(kind, Some(TypeDefKind::Resource)) && !is_wasi(name) {
            self.resources.insert(name.to_owned());
        }
    }
}

/// A function with what its types are looked up in.
type In<'a> = (&'a Resolve, &'a Function);

fn compare(name: &str, policy: In<'_>, adapter: In<'_>) -> Result<(), Error> {
    if policy.1.kind.is_async() || adapter.1.kind.is_async() {
        return Err(Error::Async(name.to_owned()));
    }
    let mut pair = Pair {
        policy: policy.0,
        adapter: adapter.0,
        equal: HashSet::new(),
    };
    pair.functions(policy.1, adapter.1)
        .map_err(|difference| Error::Differs {
            function: name.to_owned(),
            place: difference.place.join(", "),
            policy: difference.policy,
            adapter: difference.adapter,
        })
}

struct Difference {
    /// outermost first
    place: Vec<String>,
    policy: String,
    adapter: String,
}

impl Difference {
    fn new(place: impl Into<String>, policy: impl ToString, adapter: impl ToString) -> Difference {
        Difference {
            place: vec![place.into()],
            policy: policy.to_string(),
            adapter: adapter.to_string(),
        }
    }

    fn within(place: impl Into<String>) -> impl FnOnce(Difference) -> Difference {
        let place = place.into();
        move |mut difference| {
            difference.place.insert(0, place);
            difference
        }
    }
}

struct Pair<'a> {
    policy: &'a Resolve,
    adapter: &'a Resolve,
    /// Found equal: types form a graph, and a path through it may double with every step.
    equal: HashSet<(TypeId, TypeId)>,
}

/// A field, case or parameter: its name, and its type where it has one.
type Named<'a> = (&'a str, Option<&'a Type>);

impl Pair<'_> {
    fn functions(&mut self, policy: &Function, adapter: &Function) -> Result<(), Difference> {
        self.named("parameter", &parameters(policy), &parameters(adapter))?;
        self.optional("result", policy.result.as_ref(), adapter.result.as_ref())
    }

    /// Lists of the same length, names and types, in the same order.
    fn named(&mut self, what: &str, p: &[Named<'_>], a: &[Named<'_>]) -> Result<(), Difference> {
        for (at, (policy, adapter)) in p.iter().zip(a).enumerate() {
            if policy.0 != adapter.0 {
                let place = format!("{what} {}", at + 1);
                let quoted = |name: &str| format!("`{name}`");
                return Err(Difference::new(place, quoted(policy.0), quoted(adapter.0)));
            }
            self.optional(&format!("{what} `{}`", policy.0), policy.1, adapter.1)?;
        }
        if p.len() != a.len() {
            return Err(Difference::new(
                format!("number of {what}s"),
                p.len(),
                a.len(),
            ));
        }
        Ok(())
    }

    fn optional(
        &mut self,
        place: &str,
        policy: Option<&Type>,
        adapter: Option<&Type>,
    ) -> Result<(), Difference> {
        match (policy, adapter) {
            (None, None) => Ok(()),
            (Some(policy), Some(adapter)) => {
                (self.types(policy, adapter)).map_err(Difference::within(place))
            }
            (policy, adapter) => {
                let name = |resolve, ty: Option<&Type>| match ty {
                    Some(ty) => word(resolve, ty),
                    None => "nothing".to_owned(),
                };
                let policy = name(self.policy, policy);
                Err(Difference::new(place, policy, name(self.adapter, adapter)))
            }
        }
    }

    fn types(&mut self, policy: &Type, adapter: &Type) -> Result<(), Difference> {
        let policy = resolved(self.policy, policy);
        let adapter = resolved(self.adapter, adapter);
        let (Type::Id(p), Type::Id(a)) = (policy, adapter) else {
            if policy == adapter && !matches!(policy, Type::ErrorContext) {
                return Ok(());
            }
            return Err(self.kinds(&policy, &adapter));
        };
        if self.equal.contains(&(p, a)) {
            return Ok(());
        }
        self.definitions(p, a)?;
        self.equal.insert((p, a));
        Ok(())
    }

    fn definitions(&mut self, p: TypeId, a: TypeId) -> Result<(), Difference> {
        use TypeDefKind as K;
        let (Some(policy), Some(adapter)) = (kind(self.policy, p), kind(self.adapter, a)) else {
            return Err(self.kinds(&Type::Id(p), &Type::Id(a)));
        };
        match (policy, adapter) {
            (K::Record(p), K::Record(a)) => {
                let fields = |of: &wit_parser::Record| -> Vec<(String, Option<Type>)> {
                    (of.fields.iter())
                        .map(|field| (field.name.clone(), Some(field.ty)))
                        .collect()
                };
                self.named("field", &views(&fields(p)), &views(&fields(a)))
            }
            (K::Variant(p), K::Variant(a)) => {
                let cases = |of: &wit_parser::Variant| -> Vec<(String, Option<Type>)> {
                    (of.cases.iter())
                        .map(|case| (case.name.clone(), case.ty))
                        .collect()
                };
                self.named("case", &views(&cases(p)), &views(&cases(a)))
            }
            (K::Enum(p), K::Enum(a)) => {
                let cases = |of: &wit_parser::Enum| -> Vec<(String, Option<Type>)> {
                    (of.cases.iter())
                        .map(|case| (case.name.clone(), None))
                        .collect()
                };
                self.named("case", &views(&cases(p)), &views(&cases(a)))
            }
            (K::Flags(p), K::Flags(a)) => {
                let flags = |of: &wit_parser::Flags| -> Vec<(String, Option<Type>)> {
                    (of.flags.iter())
                        .map(|flag| (flag.name.clone(), None))
                        .collect()
                };
                self.named("flag", &views(&flags(p)), &views(&flags(a)))
            }
            (K::Tuple(p), K::Tuple(a)) => {
                let parts = |of: &wit_parser::Tuple| -> Vec<(String, Option<Type>)> {
                    (of.types.iter().enumerate())
                        .map(|(at, ty)| (at.to_string(), Some(*ty)))
                        .collect()
                };
                self.named("part", &views(&parts(p)), &views(&parts(a)))
            }
            (K::Option(p), K::Option(a)) => self
                .types(p, a)
                .map_err(Difference::within("the option's value")),
            (K::List(p), K::List(a)) => self
                .types(p, a)
                .map_err(Difference::within("the list's element")),
            (K::Result(p), K::Result(a)) => {
                self.optional("the ok of the result", p.ok.as_ref(), a.ok.as_ref())?;
                self.optional("the error of the result", p.err.as_ref(), a.err.as_ref())
            }
            _ => Err(self.kinds(&Type::Id(p), &Type::Id(a))),
        }
    }

    /// Of types that are not even of one kind, or of one that does not cross.
    fn kinds(&self, policy: &Type, adapter: &Type) -> Difference {
        let (p, a) = (word(self.policy, policy), word(self.adapter, adapter));
        if p == a {
            return Difference::new("type", format!("{p}, which does not cross"), a);
        }
        Difference::new("type", p, a)
    }
}

fn parameters(function: &Function) -> Vec<Named<'_>> {
    (function.params.iter())
        .map(|param| (param.name.as_str(), Some(&param.ty)))
        .collect()
}

fn views(all: &[(String, Option<Type>)]) -> Vec<Named<'_>> {
    (all.iter())
        .map(|(name, ty)| (name.as_str(), ty.as_ref()))
        .collect()
}

fn kind(resolve: &Resolve, id: TypeId) -> Option<&TypeDefKind> {
    resolve.types.get(id).map(|ty| &ty.kind)
}

/// A type behind its aliases.
fn resolved(resolve: &Resolve, ty: &Type) -> Type {
    let mut ty = *ty;
    while let Type::Id(id) = ty {
        match kind(resolve, id) {
            Some(TypeDefKind::Type(next)) => ty = *next,
            _ => break,
        }
    }
    ty
}

/// A type in one word.
fn word(resolve: &Resolve, ty: &Type) -> String {
    match resolved(resolve, ty) {
        Type::Id(id) => match kind(resolve, id) {
            Some(TypeDefKind::Handle(Handle::Own(_) | Handle::Borrow(_))) => "a handle".to_owned(),
            Some(kind) => kind.as_str().to_owned(),
            None => "an unknown type".to_owned(),
        },
        ty => format!("{ty:?}").to_lowercase(),
    }
}
