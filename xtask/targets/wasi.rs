//! What Rust's standard library calls and Debian's older C library for WASI lacks: threads, none of which starts, and
//! one name of a file, which is not found.
#![no_std]
#![crate_type = "lib"]

macro_rules! functions {
    ($($name:ident($($argument:ident),*) = $answer:literal;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($($argument: usize),*) -> i32 {
                $(let _ = $argument;)*
                $answer
            }
        )*
    };
}

// 6: EAGAIN, 45: ENOTSUP
functions! {
    pthread_attr_init(a) = 0;
    pthread_attr_destroy(a) = 0;
    pthread_attr_setstacksize(a, b) = 0;
    pthread_create(a, b, c, d) = 6;
    pthread_join(a, b) = 45;
    pthread_detach(a) = 45;
    realpath(a, b) = 0;
}
