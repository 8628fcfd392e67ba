//! The Sidestep client.
//!
//! A [`Client`] is a server as many threads may use it; a [`Session`] is one thread's way to it. Reads go around
//! the server's CPU where client and server share a host (`shm`) or each has an RDMA device (`rdma`), else over TCP; every [`Value`] tells which
//! [`Path`] served it. Writes always go through the server.
//!
//! ```
//! use sidestep_client::{Client, Error, Options};
//!
//! # let server = sidestep_server::Server::start(sidestep_server::Config {
//! #     listen: "127.0.0.1:0".to_owned(), ..Default::default() })?;
//! # let address = server.local_addr().to_string();
//! let client = Client::connect(&address, Options::default())?; // address: "127.0.0.1:7411"
//!
//! let version = client.put("user1", "Ada")?;
//! if let Some(value) = client.get("user1")? {
//!     println!("{} bytes, version {}, by {}", value.len(), value.version(), value.path());
//! }
//! match client.put_if("user1", "Grace", version + 1) {
//!     Err(Error::VersionMismatch { found }) => assert_eq!(found, version),
//!     other => panic!("{other:?}"),
//! }
//!
//! // A thread that makes many calls takes a session of its own.
//! let mut session = client.session()?;
//! session.multi_put(&[("a", "1"), ("b", "2")])?;
//! let values = session.multi_get(&["a", "b", "c"])?;
//! assert_eq!(values[1].as_deref(), Some(&b"2"[..]));
//! assert!(values[2].is_none());
//! assert!(session.delete("a")?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Many requests in flight: [`Session::submit_get`], [`Session::submit_put`], [`Session::poll`].
//!
//! | type | threads |
//! | --- | --- |
//! | [`Client`] | `Send + Sync`, cheap to clone; its own calls borrow a session from a pool |
//! | [`Session`] | `Send`, `&mut self`: one per thread, with its own connection, buffers and location cache |
//! | [`Value`] | `Send + Sync`, owns its bytes |

mod answers;
mod backoff;
mod batch;
mod buffer;
mod cache;
mod client;
mod control;
mod cooldown;
mod counters;
mod dial;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod link;
mod options;
mod paths;
mod pipeline;
#[cfg(feature = "rdma")]
mod rdma;
#[cfg(not(feature = "rdma"))]
#[path = "no_rdma.rs"]
mod rdma;
mod receive;
mod scan;
mod session;
mod shm;
mod submit;
mod tls;
mod tls_args;
mod uses;
mod value;
mod watch;

/// This build, for `--version`.
pub const BUILD: sidestep_build_info::Features = sidestep_build_info::Features { rdma: cfg!(feature = "rdma") };

pub use buffer::RegisteredBuffer;
pub use client::{Client, PortInfo, ServerInfo};
pub use counters::{Effort, Stats};
pub use error::Error;
pub use options::{Options, Path, PathMode, PutOptions};
pub use scan::ScanCursor;
pub use session::Session;
pub use sidestep_core::scan::Record;
pub use tls::Tls;
pub use tls_args::TlsArgs;
pub use value::{Answer, Completion, Meta, Ticket, Value};

/// The README's Rust block, as a test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
