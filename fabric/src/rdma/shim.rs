//! libibverbs, found when it is first asked for instead of when the program starts.
//!
//! `ibverbs-sys` declares these functions for the linker to find in `libibverbs.so`; a program linked
//! that way does not start where the library is missing. Here they are defined by us, so the linker has
//! nothing left to look for; each forwards to the library if `dlopen(3)` finds it, and fails with ENOSYS
//! if not. The list is what this crate and `ibverbs` call; the data path goes through the function table in
//! the device's context and is not slowed.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;

use ibverbs_sys as ffi;

const LIBRARY: &CStr = c"libibverbs.so.1";

/// A handle of dlopen. Never closed: providers keep threads and state of their own.
#[derive(Clone, Copy)]
struct Library(NonNull<c_void>);

// SAFETY: the handle is an opaque number to us, and dlsym may be called from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

fn library() -> Option<Library> {
    static LOADED: OnceLock<Option<Library>> = OnceLock::new();
    *LOADED.get_or_init(|| {
        // SAFETY: the name is a C string; the library's constructors are those of rdma-core.
        let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Library)
    })
}

/// Whether this machine has the library.
pub(super) fn is_library_present() -> bool {
    library().is_some()
}

fn symbol(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the handle is open for ever and the name is a C string.
    NonNull::new(unsafe { libc::dlsym(library()?.0.as_ptr(), name.as_ptr()) })
}

fn absent<T>(answer: T) -> T {
    // SAFETY: the location is valid for as long as the thread lives.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: it is this thread's own word.
    unsafe { *errno = libc::ENOSYS };
    answer
}

/// Defines each function as a forward, with the answer that it gives where there is no library.
macro_rules! forward {
    ($($name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? = $absent:expr;)*) => {$(
        // SAFETY: the name is libibverbs's, and so is what it does; nothing else of the program has it.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
            type Function = unsafe extern "C" fn($($ty),*) $(-> $ret)?;
            static FUNCTION: OnceLock<Option<Function>> = OnceLock::new();
            let found = FUNCTION.get_or_init(|| {
                const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                };
                // SAFETY: the function of this name has this type: it is taken from the library's header.
                symbol(NAME).map(|found| unsafe { std::mem::transmute::<*mut c_void, Function>(found.as_ptr()) })
            });
            match found {
                // SAFETY: the caller's promises are those that the library asks for.
                Some(function) => unsafe { function($($arg),*) },
                None => absent($absent),
            }
        }
    )*};
}

forward! {
    ibv_get_device_list(count: *mut c_int) -> *mut *mut ffi::ibv_device = null_mut();
    ibv_free_device_list(list: *mut *mut ffi::ibv_device) = ();
    ibv_get_device_name(device: *mut ffi::ibv_device) -> *const c_char = null_mut();
    ibv_get_device_guid(device: *mut ffi::ibv_device) -> ffi::__be64 = 0;
    ibv_get_device_index(device: *mut ffi::ibv_device) -> c_int = -1;
    ibv_open_device(device: *mut ffi::ibv_device) -> *mut ffi::ibv_context = null_mut();
    ibv_close_device(context: *mut ffi::ibv_context) -> c_int = libc::ENOSYS;
    ibv_query_device(context: *mut ffi::ibv_context, attr: *mut ffi::ibv_device_attr) -> c_int = libc::ENOSYS;
    ibv_query_port(context: *mut ffi::ibv_context, port: u8, attr: *mut ffi::_compat_ibv_port_attr) -> c_int
        = libc::ENOSYS;
    _ibv_query_gid_table(context: *mut ffi::ibv_context, entries: *mut ffi::ibv_gid_entry, count: usize, flags: u32,
        entry_bytes: usize) -> isize = -(libc::ENOSYS as isize);
    ibv_alloc_pd(context: *mut ffi::ibv_context) -> *mut ffi::ibv_pd = null_mut();
    ibv_dealloc_pd(pd: *mut ffi::ibv_pd) -> c_int = libc::ENOSYS;
    ibv_reg_mr(pd: *mut ffi::ibv_pd, address: *mut c_void, bytes: usize, access: c_int) -> *mut ffi::ibv_mr = null_mut();
    ibv_dereg_mr(mr: *mut ffi::ibv_mr) -> c_int = libc::ENOSYS;
    ibv_create_comp_channel(context: *mut ffi::ibv_context) -> *mut ffi::ibv_comp_channel = null_mut();
    ibv_destroy_comp_channel(channel: *mut ffi::ibv_comp_channel) -> c_int = libc::ENOSYS;
    ibv_create_cq(context: *mut ffi::ibv_context, entries: c_int, of_cq: *mut c_void,
        channel: *mut ffi::ibv_comp_channel, vector: c_int) -> *mut ffi::ibv_cq = null_mut();
    ibv_destroy_cq(cq: *mut ffi::ibv_cq) -> c_int = libc::ENOSYS;
    ibv_get_cq_event(channel: *mut ffi::ibv_comp_channel, cq: *mut *mut ffi::ibv_cq, of_cq: *mut *mut c_void) -> c_int
        = -1;
    ibv_ack_cq_events(cq: *mut ffi::ibv_cq, events: c_uint) = ();
    ibv_create_qp(pd: *mut ffi::ibv_pd, attr: *mut ffi::ibv_qp_init_attr) -> *mut ffi::ibv_qp = null_mut();
    ibv_modify_qp(qp: *mut ffi::ibv_qp, attr: *mut ffi::ibv_qp_attr, mask: c_int) -> c_int = libc::ENOSYS;
    ibv_destroy_qp(qp: *mut ffi::ibv_qp) -> c_int = libc::ENOSYS;
    ibv_create_srq(pd: *mut ffi::ibv_pd, attr: *mut ffi::ibv_srq_init_attr) -> *mut ffi::ibv_srq = null_mut();
    ibv_destroy_srq(srq: *mut ffi::ibv_srq) -> c_int = libc::ENOSYS;
    ibv_fork_init() -> c_int = libc::ENOSYS;
}
