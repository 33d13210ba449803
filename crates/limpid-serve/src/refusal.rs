//! Why a request is not answered.
