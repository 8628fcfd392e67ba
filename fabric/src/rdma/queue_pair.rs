//! Reliable connections: a queue pair, from nothing to ready.
//!
//! Both ends make one, tell each other its [`QueuePairEnd`] over a connection of their own, and connect. There is no
//! connection manager: the control connection knows who the peer is.

use std::fmt;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use ffi::ibv_qp_attr_mask as mask;
use ibverbs_sys as ffi;
use sidestep_core::handshake::QueuePairEnd;

use super::completions::Completions;
use super::messages::SharedQueue;
use super::{Domain, Port, RdmaError};

/// 4.096 µs x 2^14 = 67 ms to wait for an acknowledgement before sending again…
const TIMEOUT: u8 = 14;
/// …and so many times: a dead peer is told from a slow one in some 0.4 s. 7 would be for ever on Soft-RoCE.
const RETRIES: u8 = 6;
/// "For ever", as far as a peer without a receive buffer goes: credits keep that from happening.
const RETRIES_NOT_READY: u8 = 7;
/// 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;
const HOP_LIMIT: u8 = 64;
/// Bits of a queue pair's number, and of a packet sequence number.
const NUMBER_BITS: u32 = 24;

/// What came from a peer is not believed.
fn check(end: &QueuePairEnd) -> Result<(), RdmaError> {
    let wrong = |expected, found: u32| Err(RdmaError::Peer { expected, found: u64::from(found) });
    if end.number >> NUMBER_BITS != 0 {
        return wrong("a number of 24 bits", end.number);
    }
    if end.first_packet >> NUMBER_BITS != 0 {
        return wrong("a packet number of 24 bits", end.first_packet);
    }
    if !(1..=5).contains(&end.mtu) {
        return wrong("an MTU from 1 to 5", u32::from(end.mtu));
    }
    Ok(())
}

/// What the peer's requests may do here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Nothing,
    Read,
}

/// A queue pair and what it needs.
pub(super) struct QueuePair {
    /// None once it is destroyed.
    qp: Option<NonNull<ffi::ibv_qp>>,
    first_packet: u32,
    access: Access,
    /// Bytes that a request may carry itself, instead of naming a buffer.
    inline_bytes: usize,
    retries_not_ready: u8,
    port: Port,
    // After `qp` is gone.
    completions: Arc<Completions>,
    _shared: Option<Arc<SharedQueue>>,
    _domain: Domain,
}

// SAFETY: libibverbs is thread safe (ibverbs(7)); the queue pair is destroyed once.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// A new one, in the initial state, with room for `sends` requests. It receives no messages.
    pub(super) fn new(
        domain: &Domain,
        port: &Port,
        completions: &Arc<Completions>,
        sends: u32,
        access: Access,
    ) -> Result<Self, RdmaError> {
        Self::create(domain, port, completions, (sends, 0), access, None)
    }

    /// One that receives messages from the shared queue. Its requests carry up to `inline_bytes` bytes themselves, or
    /// none where the device does not do that.
    pub(super) fn with_messages(
        domain: &Domain,
        port: &Port,
        completions: &Arc<Completions>,
        (sends, inline_bytes): (u32, u32),
        access: Access,
        shared: &Arc<SharedQueue>,
    ) -> Result<Self, RdmaError> {
        Self::create(domain, port, completions, (sends, inline_bytes), access, Some(shared))
            .or_else(|_| Self::create(domain, port, completions, (sends, 0), access, Some(shared)))
    }

    fn create(
        domain: &Domain,
        port: &Port,
        completions: &Arc<Completions>,
        (sends, inline_bytes): (u32, u32),
        access: Access,
        shared: Option<&Arc<SharedQueue>>,
    ) -> Result<Self, RdmaError> {
        let cq = completions.queue();
        let mut attr = ffi::ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: shared.map_or(null_mut(), |shared| shared.queue()),
            cap: ffi::ibv_qp_cap {
                max_send_wr: sends.min(domain.device().limits().send_requests),
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: inline_bytes,
            },
            qp_type: ffi::ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain, completion queue and shared queue live, and are held for as long as the queue pair.
        let qp = unsafe { ffi::ibv_create_qp(domain.pd(), &raw mut attr) };
        let qp = NonNull::new(qp).ok_or_else(|| RdmaError::last("create a queue pair"))?;
        let pair = Self {
            qp: Some(qp),
            first_packet: rand::random::<u32>() >> (32 - NUMBER_BITS),
            access,
            inline_bytes: attr.cap.max_inline_data as usize,
            retries_not_ready: RETRIES_NOT_READY,
            port: port.clone(),
            completions: completions.clone(),
            _shared: shared.cloned(),
            _domain: domain.clone(),
        };
        pair.initialize()?;
        Ok(pair)
    }

    pub(super) fn inline_bytes(&self) -> usize {
        self.inline_bytes
    }

    /// Has it give up on a peer without a receive buffer after so many attempts. Before it is connected.
    #[cfg(test)]
    pub(super) fn set_retries_not_ready(&mut self, retries: u8) {
        self.retries_not_ready = retries;
    }

    /// Has it take part in nothing any more: what is under way ends with an error.
    pub(super) fn fail(&self) {
        let mut attr = ffi::ibv_qp_attr { qp_state: ffi::ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
        if let Err(error) = self.modify("end a queue pair", &mut attr, mask::IBV_QP_STATE) {
            tracing::warn!(%error, "a queue pair goes on until it is destroyed");
        }
    }

    pub(super) fn port(&self) -> &Port {
        &self.port
    }

    fn modify(&self, attempt: &str, attr: &mut ffi::ibv_qp_attr, bits: mask) -> Result<(), RdmaError> {
        let Some(qp) = self.qp else { return Ok(()) };
        // SAFETY: the queue pair lives.
        let failed = unsafe { ffi::ibv_modify_qp(qp.as_ptr(), attr, i32::try_from(bits.0).unwrap_or(0)) };
        RdmaError::check(attempt, failed)
    }

    fn initialize(&self) -> Result<(), RdmaError> {
        let access = match self.access {
            Access::Nothing => 0,
            Access::Read => ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0,
        };
        let mut attr = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_INIT,
            pkey_index: 0,
            port_num: self.port.number,
            qp_access_flags: access,
            ..Default::default()
        };
        let bits = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
        self.modify("initialize a queue pair", &mut attr, bits)
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: the queue pair lives.
        self.qp.map_or(0, |qp| unsafe { (*qp.as_ptr()).qp_num })
    }

    /// What the peer is to be told.
    pub(super) fn end(&self) -> QueuePairEnd {
        let limits = self.port.device.limits();
        QueuePairEnd {
            number: self.number(),
            first_packet: self.first_packet,
            gid: self.port.gid,
            lid: self.port.lid,
            mtu: self.port.mtu as u8,
            reads_served: limits.reads_served,
            reads_issued: limits.reads_issued,
        }
    }

    /// Makes it ready to receive from and to send to the peer.
    pub(super) fn connect(&self, peer: &QueuePairEnd) -> Result<(), RdmaError> {
        check(peer)?;
        let limits = self.port.device.limits();
        let mut attr = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_RTR,
            path_mtu: self.port.mtu.min(u32::from(peer.mtu)),
            dest_qp_num: peer.number,
            rq_psn: peer.first_packet,
            max_dest_rd_atomic: limits.reads_served.min(peer.reads_issued),
            min_rnr_timer: MIN_RNR_TIMER,
            ah_attr: self.route_to(peer),
            ..Default::default()
        };
        let mask_to_receive = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        self.modify("make a queue pair ready to receive", &mut attr, mask_to_receive)?;
        let mut attr = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_RTS,
            sq_psn: self.first_packet,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: self.retries_not_ready,
            max_rd_atomic: limits.reads_issued.min(peer.reads_served),
            ..Default::default()
        };
        let mask_to_send = mask::IBV_QP_STATE
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("make a queue pair ready to send", &mut attr, mask_to_send)
    }

    fn route_to(&self, peer: &QueuePairEnd) -> ffi::ibv_ah_attr {
        let grh = ffi::ibv_global_route {
            dgid: ffi::ibv_gid { raw: peer.gid },
            flow_label: 0,
            sgid_index: self.port.gid_index,
            hop_limit: HOP_LIMIT,
            traffic_class: 0,
        };
        ffi::ibv_ah_attr {
            grh: if self.port.is_routed { grh } else { Default::default() },
            dlid: peer.lid,
            is_global: u8::from(self.port.is_routed),
            port_num: self.port.number,
            ..Default::default()
        }
    }

    /// Posts a chain of requests: one doorbell.
    ///
    /// # Safety
    /// The chain is well formed, its addresses and keys are of registered memory that stays the device's own until
    /// the requests have completed or the queue pair is destroyed.
    pub(super) unsafe fn post(&self, first: *mut ffi::ibv_send_wr) -> Result<(), RdmaError> {
        let Some(qp) = self.qp else { return Ok(()) };
        let Some(post_send) = self.completions.ops().post_send else { return Err(RdmaError::NoLibrary) };
        let mut refused = null_mut();
        // SAFETY: the queue pair lives; the rest is the caller's promise.
        let failed = unsafe { post_send(qp.as_ptr(), first, &raw mut refused) };
        RdmaError::check("post requests", failed)
    }

    /// Ends all its requests: none touches memory afterwards. False if that failed, and they may.
    pub(super) fn destroy(&mut self) -> bool {
        let Some(qp) = self.qp.take() else { return true };
        // SAFETY: ours, and destroyed once.
        let failed = unsafe { ffi::ibv_destroy_qp(qp.as_ptr()) };
        if failed != 0 {
            tracing::warn!(errno = failed, "cannot destroy a queue pair");
        }
        failed == 0
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.destroy();
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair").field("end", &self.end()).finish_non_exhaustive()
    }
}

/// The serving side of connections: what their queue pairs share.
#[derive(Clone, Debug)]
pub struct Acceptor {
    domain: Domain,
    port: Port,
    completions: Arc<Completions>,
}

/// A queue pair whose peer may read what its domain exposes. Serves without this process's CPU; dropping it
/// ends that.
#[derive(Debug)]
pub struct Accepted {
    pair: QueuePair,
}

impl Acceptor {
    /// For queue pairs on `port` whose peers read what is exposed in `domain`.
    pub fn new(domain: &Domain, port: &Port) -> Result<Self, RdmaError> {
        // Nothing that is only read from completes here.
        let completions = Arc::new(Completions::new(domain.device(), 1)?);
        Ok(Self { domain: domain.clone(), port: port.clone(), completions })
    }

    /// Connects a new queue pair to a peer's.
    pub fn accept(&self, peer: &QueuePairEnd) -> Result<Accepted, RdmaError> {
        let pair = QueuePair::new(&self.domain, &self.port, &self.completions, 1, Access::Read)?;
        pair.connect(peer)?;
        Ok(Accepted { pair })
    }

    /// The port.
    pub fn port(&self) -> &Port {
        &self.port
    }
}

impl Accepted {
    /// What the peer is to be told.
    pub fn end(&self) -> QueuePairEnd {
        self.pair.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_not_believed() {
        let good = QueuePairEnd {
            number: 17,
            first_packet: 3,
            gid: [0; 16],
            lid: 0,
            mtu: 5,
            reads_served: 16,
            reads_issued: 16,
        };
        assert!(check(&good).is_ok());
        for wrong in [
            QueuePairEnd { number: 1 << 24, ..good },
            QueuePairEnd { first_packet: 1 << 24, ..good },
            QueuePairEnd { mtu: 0, ..good },
            QueuePairEnd { mtu: 6, ..good },
        ] {
            assert!(matches!(check(&wrong), Err(RdmaError::Peer { .. })), "{wrong:?}");
        }
    }
}
