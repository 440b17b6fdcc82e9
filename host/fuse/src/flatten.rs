//! The component, flattened: which core modules, in which order, and what crosses its border.
//!
//! wasmtime's own translator does it, nested components and all, so that both hosts read a component
//! in the same way. The adapter rides along as one more core module that nobody instantiates: the types
//! of both sides are then in one table, which the generator of the border needs.

use crate::Error;
use crate::adapter::{offered, post_return};
use crate::boundary::{Crossing, Side};
use crate::module::{Cell, CoreModule, Item, Kind};
use crate::synth::{Made, Signature};
use crate::typecheck::is_wasi;
use std::collections::HashMap;
use wasm_encoder::ValType;
use wasmtime_environ as environ;
use wasmtime_environ::component::{
    CanonicalOptionsDataModel, Component, ComponentTypesBuilder, CoreDef, CoreExport, Export,
    ExportItem, FixedEncoding, GlobalInitializer, InstantiateModule, LoweredIndex, OptionsIndex,
    RuntimeComponentInstanceIndex, RuntimeImportIndex, RuntimeMemoryIndex, RuntimePostReturnIndex,
    RuntimeReallocIndex, StaticModuleIndex, StringEncoding, Trampoline, TrampolineIndex, Transcode,
    Translator, TypeFuncIndex, UnsafeIntrinsic,
};
use wasmtime_environ::wasmparser::{Validator, WasmFeatures};
use wasmtime_environ::{
    EntityIndex, FuncIndex, Memory, MemoryIndex, ModuleInternedTypeIndex, ModuleTranslation,
    PrimaryMap, ScopeVec, Tunables, WasmValType,
};

/// The adapter's place among the modules: first, so that its memory is the one with number 0.
pub(crate) const ADAPTER: usize = 0;

/// What a proxy-wasm host offers to a module.
const PROXY: [&str; 2] = ["env", "wasi_snapshot_preview1"];

/// As a component instance, the adapter is none of the policy's.
const ADAPTER_INSTANCE: u32 = 1 << 20;

/// See the module.
pub(crate) struct Flat {
    /// the adapter, then the policy's in the order of instantiation
    pub(crate) modules: Vec<CoreModule>,
    /// what each import of each module is
    pub(crate) imports: Vec<Vec<Provider>>,
    /// calls between the adapter and the policy
    pub(crate) crossings: Vec<Crossing>,
    /// functions of the proxy, as (module, name, type in the adapter)
    pub(crate) proxy: Vec<(String, String, u32)>,
    /// WASI functions that trap
    pub(crate) stubs: Vec<String>,
    pub(crate) types: ComponentTypesBuilder,
}

/// Where an import comes from.
#[derive(Clone, Debug)]
pub(crate) enum Provider {
    Item(Item),
    /// a call by number
    Crossing(usize),
    Made(Made),
}

/// What the generator is told: no task bookkeeping, as calls are synchronous.
pub(crate) fn tunables() -> Tunables {
    let mut tunables = Tunables::default_host();
    tunables.concurrency_support = false;
    tunables
}

/// All features, so that what is refused is refused by its name; but for exceptions, which the
/// generator would use.
pub(crate) fn features() -> WasmFeatures {
    WasmFeatures::all().difference(WasmFeatures::EXCEPTIONS)
}

/// Flattens `policy` for `adapter`; both are valid.
pub(crate) fn flatten(policy: &[u8], adapter: &[u8], stub_wasi: bool) -> Result<Flat, Error> {
    let whole = with_module(policy, adapter);
    let tunables = tunables();
    let mut validator = Validator::new_with_features(features());
    let mut types = ComponentTypesBuilder::new(&validator);
    let scope = ScopeVec::new();
    let (translation, modules) = Translator::new(&tunables, &mut validator, &mut types, &scope)
        .translate(&whole)
        .map_err(|error| Error::NoComponent(format!("what the host cannot read: {error:#}")))?;
    let mut flattener = Flattener {
        component: &translation.component,
        types: &types,
        sources: &modules,
        adapter: (modules.values())
            .find(|module| module.wasm == adapter)
            .ok_or_else(|| Error::internal(STAGE, "the adapter is lost"))?,
        modules: vec![CoreModule::read(adapter)?],
        arguments: Vec::new(),
        statics: Vec::new(),
        lowered: HashMap::new(),
        memories: HashMap::new(),
        reallocs: HashMap::new(),
        post_returns: HashMap::new(),
        crossings: Vec::new(),
        proxy: Vec::new(),
        stubs: Vec::new(),
        stub_wasi,
    };
    flattener.instantiate()?;
    let mut trampolines = HashMap::new();
    for (index, trampoline) in translation.trampolines.iter() {
        trampolines.insert(index, flattener.trampoline(index, trampoline)?);
    }
    let mut imports = vec![flattener.adapter_imports()?];
    for arguments in std::mem::take(&mut flattener.arguments) {
        let providers =
            (arguments.iter()).map(|argument| flattener.argument(argument, &trampolines));
        imports.push(providers.collect::<Result<_, _>>()?);
    }
    let Flattener {
        modules,
        crossings,
        proxy,
        stubs,
        ..
    } = flattener;
    Ok(Flat {
        modules,
        imports,
        crossings,
        proxy,
        stubs,
        types,
    })
}

const STAGE: &str = "flattening the component";

/// A component with one more core module at its end.
fn with_module(component: &[u8], module: &[u8]) -> Vec<u8> {
    let mut whole = component.to_vec();
    let section = wasm_encoder::RawSection {
        id: 1,
        data: module,
    };
    whole.push(section.id);
    wasm_encoder::Encode::encode(section.data, &mut whole);
    whole
}

struct Flattener<'a> {
    component: &'a Component,
    types: &'a ComponentTypesBuilder,
    sources: &'a PrimaryMap<StaticModuleIndex, ModuleTranslation<'a>>,
    adapter: &'a ModuleTranslation<'a>,
    modules: Vec<CoreModule>,
    /// of the policy's instances
    arguments: Vec<&'a [CoreDef]>,
    statics: Vec<StaticModuleIndex>,
    lowered: HashMap<LoweredIndex, RuntimeImportIndex>,
    memories: HashMap<RuntimeMemoryIndex, (Item, Memory)>,
    reallocs: HashMap<RuntimeReallocIndex, Item>,
    post_returns: HashMap<RuntimePostReturnIndex, Item>,
    crossings: Vec<Crossing>,
    proxy: Vec<(String, String, u32)>,
    stubs: Vec<String>,
    stub_wasi: bool,
}

impl<'a> Flattener<'a> {
    /// Walks the steps of the component's instantiation.
    fn instantiate(&mut self) -> Result<(), Error> {
        for step in &self.component.initializers {
            match step {
                GlobalInitializer::InstantiateModule(
                    InstantiateModule::Static(index, arguments),
                    _,
                ) => {
                    let source = (self.sources.get(*index)).ok_or_else(|| lost("a module"))?;
                    self.modules.push(CoreModule::read(source.wasm)?);
                    crate::limit::total(&self.modules)?;
                    self.arguments.push(arguments);
                    self.statics.push(*index);
                }
                GlobalInitializer::InstantiateModule(InstantiateModule::Import(..), _) => {
                    return Err(Error::Unsupported("an imported core module".to_owned()));
                }
                GlobalInitializer::LowerImport { index, import } => {
                    self.lowered.insert(*index, *import);
                }
                GlobalInitializer::ExtractMemory(memory) => {
                    let found = self.memory(&memory.export)?;
                    self.memories.insert(memory.index, found);
                }
                GlobalInitializer::ExtractRealloc(realloc) => {
                    let found = self.core(&realloc.def)?;
                    self.reallocs.insert(realloc.index, found);
                }
                GlobalInitializer::ExtractPostReturn(post_return) => {
                    let found = self.core(&post_return.def)?;
                    self.post_returns.insert(post_return.index, found);
                }
                GlobalInitializer::ExtractCallback(_) => {
                    return Err(Error::Async(
                        "a function that the policy exports".to_owned(),
                    ));
                }
                GlobalInitializer::ExtractTable(_) => {
                    return Err(Error::Unsupported("a thread of its own".to_owned()));
                }
                GlobalInitializer::Resource(_) => {
                    return Err(Error::Resource("a type of the policy's own".to_owned()));
                }
            }
        }
        Ok(())
    }

    /// A function that the component takes from outside, or from the host.
    fn trampoline(
        &mut self,
        index: TrampolineIndex,
        trampoline: &Trampoline,
    ) -> Result<Provider, Error> {
        let ty = (self.component.trampolines.get(index)).ok_or_else(|| lost("a trampoline"))?;
        let signature = self.signature(*ty)?;
        match trampoline {
            Trampoline::LowerImport {
                index,
                lower_ty,
                options,
            } => self.import(*index, *lower_ty, *options, signature),
            Trampoline::Transcoder {
                op: Transcode::Copy(FixedEncoding::Utf8),
                from,
                from64: false,
                to,
                to64: false,
            } => {
                let find = |memory| self.memories.get(memory).ok_or_else(|| lost("a memory"));
                let ((from, _), (to, _)) = (find(from)?, find(to)?);
                Ok(Provider::Made(Made::CopyUtf8 {
                    from: from.clone(),
                    to: to.clone(),
                }))
            }
            Trampoline::Transcoder { op, .. } => Err(Error::Unsupported(format!(
                "a component whose parts exchange strings as {}",
                op.desc()
            ))),
            Trampoline::Trap => Ok(Provider::Made(Made::Trap(signature))),
            Trampoline::ResourceNew { .. }
            | Trampoline::ResourceRep { .. }
            | Trampoline::ResourceDrop { .. }
                if self.stub_wasi =>
            {
                // Those of WASI, as no others got here: no handle ever comes from a stub.
                Ok(Provider::Made(Made::Trap(signature)))
            }
            other => Err(Error::Unsupported(format!(
                "the component model's `{}`",
                other.symbol_name()
            ))),
        }
    }

    /// An import of the component: the adapter's export of that name.
    fn import(
        &mut self,
        index: LoweredIndex,
        ty: TypeFuncIndex,
        options: OptionsIndex,
        signature: Signature,
    ) -> Result<Provider, Error> {
        let import = (self.lowered.get(&index)).and_then(|at| self.component.imports.get(*at));
        let (import, path) = import.ok_or_else(|| lost("an import"))?;
        let (name, _) =
            (self.component.import_types.get(*import)).ok_or_else(|| lost("an import's type"))?;
        let name = [std::slice::from_ref(name), path].concat().join("#");
        if is_wasi(&name) {
            if !self.stub_wasi {
                return Err(Error::Wasi(name));
            }
            self.stubs.push(name);
            return Ok(Provider::Made(Made::Trap(signature)));
        }
        let adapter = self.adapter_module()?;
        let function = offered(adapter, &name).ok_or_else(|| Error::NoImport(name.clone()))?;
        let post_return = post_return(adapter, &name);
        let mut callee = self.adapter_side(function)?;
        callee.post_return = post_return.map(|index| of(ADAPTER, Kind::Function, index));
        let caller = self.policy_side(&name, options)?;
        let function = of(ADAPTER, Kind::Function, function);
        Ok(self.cross(ty, caller, callee, function))
    }

    /// What the adapter takes from the policy, and from the proxy.
    fn adapter_imports(&mut self) -> Result<Vec<Provider>, Error> {
        let lifted = self.lifted();
        let mut providers = Vec::new();
        let imports = self.adapter_module()?.imports.clone();
        for (at, import) in imports.into_iter().enumerate() {
            let name = import.full_name();
            let Some(ty) = import.ty else {
                let found = format!("one that imports {name}, which is no function");
                return Err(Error::NoAdapter(found));
            };
            let Some((function_ty, function, options)) = lifted.get(&name) else {
                if !PROXY.contains(&import.module.as_str()) {
                    return Err(Error::NoExport(name));
                }
                let proxy = Item::Proxy(self.proxy.len() as u32);
                self.proxy.push((import.module, import.name, ty));
                providers.push(Provider::Item(proxy));
                continue;
            };
            // Only functions are imported, so the place is the function's number.
            let caller = self.adapter_side(at as u32)?;
            let callee = self.policy_side(&name, *options)?;
            let function = self.core(function)?;
            providers.push(self.cross(*function_ty, caller, callee, function));
        }
        Ok(providers)
    }

    /// The functions that the component exports.
    fn lifted(&self) -> HashMap<String, (TypeFuncIndex, &'a CoreDef, OptionsIndex)> {
        let mut lifted = HashMap::new();
        let mut add = |name: String, export: Option<&'a Export>| {
            if let Some(Export::LiftedFunction { ty, func, options }) = export {
                lifted.insert(name, (*ty, func, *options));
            }
        };
        let items = &self.component.export_items;
        for (name, (index, _)) in self.component.exports.raw_iter() {
            match items.get(*index) {
                Some(Export::Instance { exports, .. }) => {
                    for (function, (index, _)) in exports.raw_iter() {
                        add(format!("{name}#{function}"), items.get(*index));
                    }
                }
                export => add(name.to_string(), export),
            }
        }
        lifted
    }

    fn cross(&mut self, ty: TypeFuncIndex, caller: Side, callee: Side, function: Item) -> Provider {
        self.crossings.push(Crossing {
            ty,
            caller,
            callee,
            function,
        });
        Provider::Crossing(self.crossings.len() - 1)
    }

    /// An argument of a core module's instantiation.
    fn argument(
        &self,
        argument: &CoreDef,
        trampolines: &HashMap<TrampolineIndex, Provider>,
    ) -> Result<Provider, Error> {
        match argument {
            CoreDef::Export(_) => Ok(Provider::Item(self.core(argument)?)),
            CoreDef::InstanceFlags(instance) => Ok(Provider::Item(Item::Cell(Cell::MayLeave(
                instance.as_u32(),
            )))),
            CoreDef::Trampoline(index) => {
                (trampolines.get(index).cloned()).ok_or_else(|| lost("a trampoline"))
            }
            CoreDef::UnsafeIntrinsic(intrinsic) => match intrinsic {
                UnsafeIntrinsic::ContextGetI32_0 => Ok(Provider::Made(Made::Get(Cell::Context(0)))),
                UnsafeIntrinsic::ContextGetI32_1 => Ok(Provider::Made(Made::Get(Cell::Context(1)))),
                UnsafeIntrinsic::ContextSetI32_0 => Ok(Provider::Made(Made::Set(Cell::Context(0)))),
                UnsafeIntrinsic::ContextSetI32_1 => Ok(Provider::Made(Made::Set(Cell::Context(1)))),
                other => Err(Error::Unsupported(format!("the intrinsic {other:?}"))),
            },
            CoreDef::TaskMayBlock => Err(Error::Unsupported("a task that blocks".to_owned())),
        }
    }

    fn adapter_module(&self) -> Result<&CoreModule, Error> {
        self.modules.get(ADAPTER).ok_or_else(|| lost("the adapter"))
    }

    /// The adapter's end of a call through its function of that number.
    fn adapter_side(&self, function: u32) -> Result<Side, Error> {
        let adapter = self.adapter_module()?;
        let missing = |what| Error::NoAdapter(format!("one that does not export `{what}`"));
        let memory = (adapter.export(Kind::Memory, "memory")).ok_or_else(|| missing("memory"))?;
        let realloc = (adapter.export(Kind::Function, "cabi_realloc"))
            .ok_or_else(|| missing("cabi_realloc"))?;
        let module = &self.adapter.module;
        let memory_ty = (module.memories.get(MemoryIndex::from_u32(memory)))
            .ok_or_else(|| lost("the adapter's memory"))?;
        let signature = (module.functions.get(FuncIndex::from_u32(function)))
            .ok_or_else(|| lost("a function of the adapter"))?
            .signature;
        let core_type = signature.unwrap_module_type_index();
        Ok(Side {
            instance: RuntimeComponentInstanceIndex::from_u32(ADAPTER_INSTANCE),
            core_type,
            signature: self.signature(core_type)?,
            memory: Some((of(ADAPTER, Kind::Memory, memory), *memory_ty)),
            realloc: Some(of(ADAPTER, Kind::Function, realloc)),
            post_return: None,
        })
    }

    /// The policy's end of a call with these canonical options.
    fn policy_side(&self, name: &str, options: OptionsIndex) -> Result<Side, Error> {
        let options = (self.component.options.get(options)).ok_or_else(|| lost("options"))?;
        if options.async_ || options.callback.is_some() || options.cancellable {
            return Err(Error::Async(name.to_owned()));
        }
        let wrong = |found| Error::Encoding {
            function: name.to_owned(),
            found,
        };
        match options.string_encoding {
            StringEncoding::Utf8 => {}
            StringEncoding::Utf16 => return Err(wrong("UTF-16")),
            StringEncoding::CompactUtf16 => return Err(wrong("latin1+UTF-16")),
        }
        let CanonicalOptionsDataModel::LinearMemory(linear) = options.data_model else {
            return Err(Error::Unsupported(format!(
                "garbage-collected data ({name})"
            )));
        };
        let memory = (linear.memory).map(|index| {
            self.memories
                .get(&index)
                .cloned()
                .ok_or_else(|| lost("a memory"))
        });
        let realloc = (linear.realloc).map(|index| {
            self.reallocs
                .get(&index)
                .cloned()
                .ok_or_else(|| lost("a realloc"))
        });
        let post_return = (options.post_return).map(|index| {
            self.post_returns
                .get(&index)
                .cloned()
                .ok_or_else(|| lost("a post-return"))
        });
        Ok(Side {
            instance: options.instance,
            core_type: options.core_type,
            signature: self.signature(options.core_type)?,
            memory: memory.transpose()?,
            realloc: realloc.transpose()?,
            post_return: post_return.transpose()?,
        })
    }

    fn signature(&self, ty: ModuleInternedTypeIndex) -> Result<Signature, Error> {
        let types = self.types.module_types_builder();
        let function = types[ty].composite_type.inner.unwrap_func();
        let all =
            |types: &[WasmValType]| types.iter().map(value_type).collect::<Result<Vec<_>, _>>();
        Ok(Signature {
            params: all(function.params())?,
            results: all(function.results())?,
        })
    }

    fn memory(&self, export: &CoreExport<MemoryIndex>) -> Result<(Item, Memory), Error> {
        let at = export.instance.as_u32() as usize;
        let index = match &export.item {
            ExportItem::Index(index) => *index,
            ExportItem::Name(name) => return Err(lost(name)),
        };
        let ty = (self.statics.get(at))
            .and_then(|module| self.sources.get(*module))
            .and_then(|module| module.module.memories.get(index))
            .ok_or_else(|| lost("a memory's type"))?;
        if ty.idx_type != environ::IndexType::I32 || ty.shared {
            return Err(Error::Unsupported("a 64-bit or shared memory".to_owned()));
        }
        Ok((of(at + 1, Kind::Memory, index.as_u32()), *ty))
    }

    /// A definition that must be an export of a core module.
    fn core(&self, definition: &CoreDef) -> Result<Item, Error> {
        let CoreDef::Export(export) = definition else {
            return Err(Error::Unsupported(format!(
                "a component made with {definition:?}"
            )));
        };
        let ExportItem::Index(index) = &export.item else {
            return Err(lost("an export by name"));
        };
        let (kind, index) = match index {
            EntityIndex::Function(index) => (Kind::Function, index.as_u32()),
            EntityIndex::Table(index) => (Kind::Table, index.as_u32()),
            EntityIndex::Memory(index) => (Kind::Memory, index.as_u32()),
            EntityIndex::Global(index) => (Kind::Global, index.as_u32()),
            EntityIndex::Tag(index) => (Kind::Tag, index.as_u32()),
        };
        // The adapter stands before the component's instances.
        Ok(of(export.instance.as_u32() as usize + 1, kind, index))
    }
}

fn of(module: usize, kind: Kind, index: u32) -> Item {
    Item::Of {
        module,
        kind,
        index,
    }
}

fn lost(what: &str) -> Error {
    Error::internal(STAGE, format!("{what} is lost"))
}

fn value_type(ty: &WasmValType) -> Result<ValType, Error> {
    Ok(match ty {
        WasmValType::I32 => ValType::I32,
        WasmValType::I64 => ValType::I64,
        WasmValType::F32 => ValType::F32,
        WasmValType::F64 => ValType::F64,
        WasmValType::V128 => ValType::V128,
        WasmValType::Ref(_) => {
            return Err(Error::Unsupported("a reference that crosses".to_owned()));
        }
    })
}
