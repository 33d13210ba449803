//! Numbers with named axes, which NumPy reads by the buffer protocol and others by DLPack, both in place.

#![allow(unsafe_code)] // both protocols are structs of C with pointers

use limpid::draw::picture::png::base64;
use limpid::draw::picture::{PlotPart, TensorPlot};
use limpid::draw::view::matrices;
use limpid::numeric::half::nearest_bf16;
use limpid::trace::NamedTensor;
use limpid::trace::labels::Labels;
use pyo3::call::PyCallArgs;
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::pyclass::CompareOp;
use pyo3::types::{PyDict, PyTuple};
use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;
use std::{ptr, slice};

/// What a tensor's memory holds. Who reads it in place holds it too.
#[derive(Clone)]
enum Values {
    F32(Arc<NamedTensor>),
    /// The upper halves of f32s.
    Bf16(Arc<[u16]>),
    I64(Arc<[i64]>),
}

impl Values {
    fn bytes(&self) -> &[u8] {
        fn of<T>(values: &[T]) -> &[u8] {
            // SAFETY: the numbers of a slice lie in a row, without padding, and any byte is a u8.
            unsafe { slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
        }
        match self {
            Values::F32(tensor) => of(&tensor.values),
            Values::Bf16(values) => of(values),
            Values::I64(values) => of(values),
        }
    }

    /// The name, bytes of a number, DLPack's code, and the buffer protocol's format, which has no bfloat16.
    fn kind(&self) -> (&'static str, usize, u8, Option<&'static CStr>) {
        match self {
            Values::F32(_) => ("float32", 4, 2, Some(c"f")),
            Values::Bf16(_) => ("bfloat16", 2, 4, None),
            Values::I64(_) => ("int64", 8, 0, Some(c"q")),
        }
    }
}

/// A tensor that cannot be changed, its numbers row by row. `numpy.asarray(t)` and `torch.from_dlpack(t)` read it
/// without a copy; `t[...]` indexes it as NumPy does, and arithmetic, comparisons and methods (`t.mean()`) are NumPy's.
#[pyclass(frozen, module = "limpid")]
pub struct Tensor {
    /// Its name in the model.
    #[pyo3(get)]
    name: String,
    axes: Vec<String>,
    /// Sizes, and bytes from one place of an axis to the next: what views point to.
    shape: Vec<isize>,
    strides: Vec<isize>,
    values: Values,
    /// Words for its positions in pictures.
    labels: Arc<Labels>,
}

/// Heat maps of a tensor that a notebook shows, the first ones.
const MAPS: usize = 4;

impl Tensor {
    fn new(name: String, axes: Vec<String>, shape: &[usize], values: Values) -> Tensor {
        let (_, wide, ..) = values.kind();
        let strides = (0..shape.len()).map(|axis| (shape[axis + 1..].iter().product::<usize>() * wide) as isize);
        let (strides, shape) = (strides.collect(), shape.iter().map(|n| *n as isize).collect());
        Tensor { name, axes, shape, strides, values, labels: Arc::default() }
    }

    /// The same, with words for its positions.
    pub fn labelled(self, labels: &Arc<Labels>) -> Tensor {
        Tensor { labels: labels.clone(), ..self }
    }

    /// Ids or counts.
    pub fn whole(name: &str, axes: &[&str], shape: &[usize], values: impl Iterator<Item = i64>) -> Tensor {
        let axes = axes.iter().map(|axis| axis.to_string()).collect();
        Tensor::new(name.into(), axes, shape, Values::I64(values.collect()))
    }

    fn numpy<'py>(slf: &Bound<'py, Tensor>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("numpy")?.call_method1("asarray", (slf,))
    }

    /// A method of NumPy's arrays.
    fn through<'py>(slf: &Bound<'py, Tensor>, method: &str, values: impl PyCallArgs<'py>) -> PyResult<Py<PyAny>> {
        Ok(Tensor::numpy(slf)?.call_method1(method, values)?.unbind())
    }

    /// Why NumPy cannot read it, if it cannot.
    fn unread(&self) -> Option<String> {
        let (name, .., format) = self.values.kind();
        let text = || format!("NumPy has no {name}: read it with torch.from_dlpack, or take the float32 tensor");
        format.is_none().then(text)
    }
}

impl From<Arc<NamedTensor>> for Tensor {
    fn from(tensor: Arc<NamedTensor>) -> Tensor {
        let axes = tensor.axes.iter().map(|axis| axis.to_string()).collect();
        Tensor::new(tensor.name.clone(), axes, &tensor.shape.clone(), Values::F32(tensor))
    }
}

/// A plot for a notebook: an image, since the styles of an SVG in the page would reach the rest of the notebook, and
/// since Jupyter takes an SVG out of a notebook that is not trusted.
pub fn image(plot: &TensorPlot) -> String {
    let svg = base64(plot.svg(None).as_bytes());
    format!("<img alt=\"heat map\" style=\"max-width:100%\" src=\"data:image/svg+xml;base64,{svg}\">")
}

#[pymethods]
impl Tensor {
    /// The name of each axis: `('batch', 'pos', 'd_model')`.
    #[getter]
    fn axes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.axes)
    }

    /// The size of each axis.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// `float32`, `bfloat16` or `int64`.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.values.kind().0
    }

    /// How many axes it has.
    #[getter]
    fn ndim(&self) -> usize {
        self.shape.len()
    }

    /// How many numbers it has.
    #[getter]
    fn size(&self) -> isize {
        self.shape.iter().product()
    }

    /// The same in bfloat16, each number rounded to the nearest (ties to even). For `torch.from_dlpack`: NumPy has no
    /// such type.
    fn bfloat16(&self) -> PyResult<Tensor> {
        let Values::F32(tensor) = &self.values else {
            return Err(PyTypeError::new_err(format!("only float32 is rounded to bfloat16: this is {}", self.dtype())));
        };
        let values = tensor.values.iter().map(|v| nearest_bf16(*v)).collect();
        let shape: Vec<usize> = self.shape.iter().map(|n| *n as usize).collect();
        Ok(Tensor::new(self.name.clone(), self.axes.clone(), &shape, Values::Bf16(values)))
    }

    /// The numbers as lists of lists.
    fn tolist(slf: &Bound<Tensor>) -> PyResult<Py<PyAny>> {
        let view = slf.py().get_type::<pyo3::types::PyMemoryView>().call1((slf,))?;
        Ok(view.call_method0("tolist")?.unbind())
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.shape.first().ok_or_else(|| PyTypeError::new_err("a tensor without axes has no length"))?;
        Ok(*first as usize)
    }

    /// A view as NumPy makes it: `t[0, -1]`, `t[..., :3]`.
    fn __getitem__(slf: &Bound<Tensor>, index: &Bound<PyAny>) -> PyResult<Py<PyAny>> {
        Ok(Tensor::numpy(slf)?.get_item(index)?.unbind())
    }

    /// For NumPy, which asks this way where the buffer refuses.
    #[pyo3(signature = (dtype = None, *, copy = None))]
    fn __array__(slf: &Bound<Tensor>, dtype: Option<&Bound<PyAny>>, copy: Option<bool>) -> PyResult<Py<PyAny>> {
        if let Some(why) = slf.get().unread() {
            return Err(PyTypeError::new_err(why));
        }
        let py = slf.py();
        let view = py.get_type::<pyo3::types::PyMemoryView>().call1((slf,))?;
        let how = PyDict::new(py);
        how.set_item("dtype", dtype)?;
        if copy == Some(true) {
            return Ok(py.import("numpy")?.call_method("array", (view,), Some(&how))?.unbind());
        }
        Ok(py.import("numpy")?.call_method("asarray", (view,), Some(&how))?.unbind())
    }

    /// Everything else that NumPy's arrays have: `t.mean()`, `t.max(-1)`, `t.T`.
    fn __getattr__(slf: &Bound<Tensor>, name: &str) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        if name.starts_with('_') || !py.import("numpy")?.getattr("ndarray")?.hasattr(name)? {
            return Err(PyAttributeError::new_err(format!("a Tensor has no `{name}`, and neither has NumPy's array")));
        }
        Ok(Tensor::numpy(slf)?.getattr(name)?.unbind())
    }

    /// Number by number, as NumPy compares.
    fn __richcmp__(slf: &Bound<Tensor>, other: &Bound<PyAny>, how: CompareOp) -> PyResult<Py<PyAny>> {
        Ok(Tensor::numpy(slf)?.rich_compare(other, how)?.unbind())
    }

    fn __bool__(slf: &Bound<Tensor>) -> PyResult<bool> {
        Tensor::numpy(slf)?.is_truthy()
    }

    fn __contains__(slf: &Bound<Tensor>, value: &Bound<PyAny>) -> PyResult<bool> {
        Tensor::numpy(slf)?.contains(value)
    }

    fn __add__(slf: &Bound<Tensor>, other: &Bound<PyAny>) -> PyResult<Py<PyAny>> {
        Tensor::through(slf, "__add__", (other,))
    }

    fn __radd__(slf: &Bound<Tensor>, other: &Bound<PyAny>) -> PyResult<Py<PyAny>> {
        Tensor::through(slf, "__radd__", (other,))
    }

    fn __sub__(slf: &Bound<Tensor>, other: &Bound<PyAny>) -> PyResult<Py<PyAny>> {
        Tensor::through(slf, "__sub__", (other,))
    }

    fn __rsub__(slf: &Bound<Tensor>, other: &Bound<PyAny>) -> PyResult<Py<PyAny>> {
        Tensor::through(slf, "__rsub__", (other,))
    }

    fn __mul__(slf: &Bound<Tensor>, other: &Bound<PyAny>) -> PyResult<Py<PyAny>> {
        Tensor::through(slf, "__mul__", (other,))
    }

    fn __rmul__(slf: &Bound<Tensor>, other: &Bound<PyAny>) -> PyResult<Py<PyAny>> {
        Tensor::through(slf, "__rmul__", (other,))
    }

    fn __truediv__(slf: &Bound<Tensor>, other: &Bound<PyAny>) -> PyResult<Py<PyAny>> {
        Tensor::through(slf, "__truediv__", (other,))
    }

    fn __rtruediv__(slf: &Bound<Tensor>, other: &Bound<PyAny>) -> PyResult<Py<PyAny>> {
        Tensor::through(slf, "__rtruediv__", (other,))
    }

    fn __floordiv__(slf: &Bound<Tensor>, other: &Bound<PyAny>) -> PyResult<Py<PyAny>> {
        Tensor::through(slf, "__floordiv__", (other,))
    }

    fn __rfloordiv__(slf: &Bound<Tensor>, other: &Bound<PyAny>) -> PyResult<Py<PyAny>> {
        Tensor::through(slf, "__rfloordiv__", (other,))
    }

    fn __mod__(slf: &Bound<Tensor>, other: &Bound<PyAny>) -> PyResult<Py<PyAny>> {
        Tensor::through(slf, "__mod__", (other,))
    }

    fn __rmod__(slf: &Bound<Tensor>, other: &Bound<PyAny>) -> PyResult<Py<PyAny>> {
        Tensor::through(slf, "__rmod__", (other,))
    }

    fn __matmul__(slf: &Bound<Tensor>, other: &Bound<PyAny>) -> PyResult<Py<PyAny>> {
        Tensor::through(slf, "__matmul__", (other,))
    }

    fn __rmatmul__(slf: &Bound<Tensor>, other: &Bound<PyAny>) -> PyResult<Py<PyAny>> {
        Tensor::through(slf, "__rmatmul__", (other,))
    }

    fn __pow__(slf: &Bound<Tensor>, other: &Bound<PyAny>, modulo: &Bound<PyAny>) -> PyResult<Py<PyAny>> {
        if !modulo.is_none() {
            return Err(PyTypeError::new_err("a tensor has no power modulo a number"));
        }
        Tensor::through(slf, "__pow__", (other,))
    }

    fn __rpow__(slf: &Bound<Tensor>, other: &Bound<PyAny>, modulo: &Bound<PyAny>) -> PyResult<Py<PyAny>> {
        if !modulo.is_none() {
            return Err(PyTypeError::new_err("a tensor has no power modulo a number"));
        }
        Tensor::through(slf, "__rpow__", (other,))
    }

    fn __neg__(slf: &Bound<Tensor>) -> PyResult<Py<PyAny>> {
        Tensor::through(slf, "__neg__", ())
    }

    fn __pos__(slf: &Bound<Tensor>) -> PyResult<Py<PyAny>> {
        Tensor::through(slf, "__pos__", ())
    }

    fn __abs__(slf: &Bound<Tensor>) -> PyResult<Py<PyAny>> {
        Tensor::through(slf, "__abs__", ())
    }

    fn __float__(slf: &Bound<Tensor>) -> PyResult<Py<PyAny>> {
        Tensor::through(slf, "__float__", ())
    }

    fn __int__(slf: &Bound<Tensor>) -> PyResult<Py<PyAny>> {
        Tensor::through(slf, "__int__", ())
    }

    fn __repr__(&self) -> String {
        let sizes: Vec<String> = self.axes.iter().zip(&self.shape).map(|(axis, n)| format!("{axis}={n}")).collect();
        format!("Tensor({}, [{}], {})", self.name, sizes.join(" "), self.dtype())
    }

    /// Heat maps of its last two axes, the first four.
    fn _repr_html_(&self) -> String {
        let Values::F32(tensor) = &self.values else { return format!("<code>{}</code>", self.__repr__()) };
        let parts = matrices(tensor, &self.labels).take(MAPS).map(PlotPart::Matrix).collect();
        let matrices: usize = tensor.shape.iter().rev().skip(2).product();
        let more = if matrices > MAPS { format!("; the first {MAPS} of {matrices} matrices") } else { String::new() };
        let sizes: Vec<String> = self.axes.iter().zip(&self.shape).map(|(axis, n)| format!("{axis} {n}")).collect();
        image(&TensorPlot { title: self.name.clone(), about: format!("{}{more}", sizes.join(", ")), parts })
    }

    /// DLPack: the memory itself, marked as read-only.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__(
        &self,
        py: Python,
        stream: Option<&Bound<PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        if stream.is_some() {
            return Err(PyValueError::new_err(
                "stream: a tensor in the processor's memory has none, so it must be None",
            ));
        }
        if let Some(device) = dl_device.filter(|device| *device != dlpack::CPU) {
            let text =
                format!("dl_device: the tensor is in the processor's memory, {:?}; found {device:?}", dlpack::CPU);
            return Err(PyBufferError::new_err(text));
        }
        let versioned = max_version.is_some_and(|(major, _)| major >= 1);
        // before version 1 nothing says that memory is read-only, so the reader gets memory of its own
        if !versioned && copy == Some(false) {
            return Err(PyBufferError::new_err(
                "copy=False: the tensor is read-only, which DLPack can say from version 1.0 on: ask with \
                 max_version=(1, 0)",
            ));
        }
        let (_, wide, code, _) = self.values.kind();
        let dtype = dlpack::DataType { code, bits: 8 * wide as u8, lanes: 1 };
        let copied = !versioned || copy == Some(true);
        let shape = self.shape.iter().map(|n| *n as i64).collect();
        let strides = self.strides.iter().map(|bytes| *bytes as i64 / wide as i64).collect();
        let values = if copied {
            dlpack::Memory::copied(self.values.bytes())
        } else {
            dlpack::Memory::Shared(self.values.clone())
        };
        dlpack::capsule(py, dlpack::Held { values, shape, strides }, dtype, versioned)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    /// # Safety
    /// As Python calls it: `view` points to a buffer to be filled.
    unsafe fn __getbuffer__(slf: Bound<Tensor>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let tensor = slf.get();
        let (_, wide, _, format) = tensor.values.kind();
        let Some(format) = format else {
            return Err(PyBufferError::new_err(tensor.unread().unwrap_or_default()));
        };
        if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
            return Err(PyBufferError::new_err("a Tensor cannot be changed: copy it first, as numpy.array(t) does"));
        }
        let asked = |flag: c_int| flags & flag == flag;
        let bytes = tensor.values.bytes();
        // SAFETY: `view` is Python's; what it points to belongs to the tensor, which `obj` keeps as long as the view
        // lives and which never changes. Flags that ask for less get null pointers, as the protocol says.
        unsafe {
            (*view).buf = bytes.as_ptr().cast_mut().cast();
            (*view).len = bytes.len() as isize;
            (*view).itemsize = wide as isize;
            (*view).readonly = 1;
            (*view).ndim = tensor.shape.len() as c_int;
            (*view).format = if asked(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).shape = if asked(ffi::PyBUF_ND) { tensor.shape.as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).strides =
                if asked(ffi::PyBUF_STRIDES) { tensor.strides.as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = ptr::null_mut();
            (*view).obj = slf.into_ptr();
        }
        Ok(())
    }
}

/// DLPack, version 1.0 and before: <https://dmlc.github.io/dlpack/latest/c_api.html>
mod dlpack {
    use super::*;

    /// kDLCPU, the first.
    pub const CPU: (i32, i32) = (1, 0);
    const READ_ONLY: u64 = 1;
    const COPIED: u64 = 2;
    const VERSIONED: &CStr = c"dltensor_versioned";
    const PLAIN: &CStr = c"dltensor";

    #[repr(C)]
    pub struct DataType {
        pub code: u8,
        pub bits: u8,
        pub lanes: u16,
    }

    #[repr(C)]
    struct DlTensor {
        data: *mut c_void,
        device: (i32, i32),
        ndim: i32,
        dtype: DataType,
        shape: *mut i64,
        strides: *mut i64,
        byte_offset: u64,
    }

    #[repr(C)]
    struct Plain {
        tensor: DlTensor,
        held: *mut c_void,
        deleter: Option<unsafe extern "C" fn(*mut Plain)>,
    }

    #[repr(C)]
    struct Versioned {
        version: [u32; 2],
        held: *mut c_void,
        deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
        flags: u64,
        tensor: DlTensor,
    }

    /// Memory that a reader holds.
    pub enum Memory {
        Shared(Values),
        /// Words, so that any number lies as it must.
        Own(Vec<u64>),
    }

    impl Memory {
        pub fn copied(bytes: &[u8]) -> Memory {
            let word = |part: &[u8]| {
                let mut word = [0; 8];
                word[..part.len()].copy_from_slice(part);
                u64::from_ne_bytes(word)
            };
            Memory::Own(bytes.chunks(8).map(word).collect())
        }
    }

    /// What stays until the reader lets go.
    pub struct Held {
        pub values: Memory,
        pub shape: Vec<i64>,
        pub strides: Vec<i64>,
    }

    impl Held {
        fn tensor(&mut self, dtype: DataType) -> DlTensor {
            let data = match &mut self.values {
                Memory::Shared(values) => values.bytes().as_ptr().cast_mut().cast(),
                Memory::Own(words) => words.as_mut_ptr().cast(),
            };
            DlTensor {
                data,
                device: CPU,
                ndim: self.shape.len() as i32,
                dtype,
                shape: self.shape.as_mut_ptr(),
                strides: self.strides.as_mut_ptr(),
                byte_offset: 0,
            }
        }
    }

    unsafe extern "C" fn end_plain(managed: *mut Plain) {
        // SAFETY: `managed` is one that `capsule` made, and whoever has it calls this once.
        unsafe { drop((Box::from_raw((*managed).held.cast::<Held>()), Box::from_raw(managed))) };
    }
    unsafe extern "C" fn end_versioned(managed: *mut Versioned) {
        // SAFETY: `managed` is one that `capsule` made, and whoever has it calls this once.
        unsafe { drop((Box::from_raw((*managed).held.cast::<Held>()), Box::from_raw(managed))) };
    }

    /// Ends what nobody took: who takes a capsule renames it.
    unsafe extern "C" fn end_capsule(capsule: *mut ffi::PyObject) {
        // SAFETY: Python calls it with a capsule of `capsule`, whose pointer is of the kind that its name says.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
                end_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
            } else if ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) == 1 {
                end_plain(ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()).cast());
            }
        }
    }

    /// A capsule with the memory.
    pub fn capsule(py: Python, held: Held, dtype: DataType, versioned: bool) -> PyResult<Py<PyAny>> {
        let own = matches!(held.values, Memory::Own(_));
        let mut held = Box::new(held);
        let tensor = held.tensor(dtype);
        let held = Box::into_raw(held).cast();
        let (pointer, name): (*mut c_void, _) = if versioned {
            let flags = if own { COPIED } else { READ_ONLY };
            let managed = Versioned { version: [1, 0], held, deleter: Some(end_versioned), flags, tensor };
            (Box::into_raw(Box::new(managed)).cast(), VERSIONED)
        } else {
            (Box::into_raw(Box::new(Plain { tensor, held, deleter: Some(end_plain) })).cast(), PLAIN)
        };
        // SAFETY: the pointer is not null, the name lives as long as the program, and the destructor takes such a
        // capsule.
        unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(pointer, name.as_ptr(), Some(end_capsule))) }
            .map(Bound::unbind)
    }
}
