//! Receiver not ready, status 13. Credits keep it from happening, and queue pairs of ours would try again for ever: one
//! that breaks both rules meets it.

use super::*;

/// The message that finds no buffer fails after its retries, and with it all behind it; the sender beside it, which keeps
/// the rules and tries for ever, waits until there are buffers again.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn a_receiver_that_is_never_ready_is_given_up_and_one_that_will_be_is_waited_for() {
    const RECEIVES: usize = 8;
    let port = port();
    let mut server = exchange(&port, 2, RECEIVES as u16 / 2);
    let (mut hasty, mut patient) = (exchange(&port, 1, 4), exchange(&port, 1, 4));
    let (of_patient, at_server) = connect(&mut patient, &mut server, (0, 1));
    let (of_hasty, end) = hasty.open(0, false).unwrap();
    open(&mut hasty.ends, &of_hasty).unwrap().pair.set_retries_not_ready(1);
    let (at_server_hasty, server_end) = server.open(2, false).unwrap();
    hasty.connect(&of_hasty, &server_end).unwrap();
    server.connect(&at_server_hasty, &end).unwrap();

    // The server looks at nothing, and so posts no buffer again.
    let pool = hasty.pool.clone();
    let sender = open(&mut hasty.ends, &of_hasty).unwrap();
    sender.take_credits(100);
    for _ in 0..RECEIVES + 1 {
        assert_eq!(sender.send(b"too many", &pool).unwrap(), 8);
    }
    let mut failure = None;
    until("an error completion", || {
        hasty.poll(|_| ()).unwrap();
        failure = hasty.receive(&of_hasty, &mut [0; 8]).err();
        failure.is_some()
    });
    let text = failure.as_ref().map(ToString::to_string).unwrap_or_default();
    let Some(RdmaError::Completion { status, .. }) = failure else { panic!("expected a status, found {text}") };
    assert_eq!(status, ffi::ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR, "{text}");
    assert!(text.contains("no receive buffer"), "{text}");
    assert!(hasty.send(&of_hasty, b"?").is_err(), "it is of no use any more");

    assert_eq!(patient.send(&of_patient, b"all well").unwrap(), 8);
    let (mut room, mut got) = ([0; 8], 0);
    until("the message that waited", || {
        server.poll(|_| ()).unwrap();
        patient.poll(|_| ()).unwrap();
        got += server.receive(&at_server, &mut room[got..]).unwrap();
        got == 8
    });
    assert_eq!(&room, b"all well");
    assert!(open(&mut patient.ends, &of_patient).is_ok_and(|end| !end.has_failed()));
}
