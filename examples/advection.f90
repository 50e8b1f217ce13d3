! A solver in Fortran, with ranks and messages of its own, whose error a small network learns to correct:
!
!     mpirun -np 4 advection --steps 400
!
! A field on a ring is carried along and spreads: u_t + u_x = nu u_xx. Upwind differences on few cells smear its waves. The
! closure is a network that reads the curvature of three cells and gives what the scheme lacks; it is trained on random
! fields, whose exact solution is known, each rank on the cells that it owns, and then corrects the solver in every step.
program advection
  use, intrinsic :: iso_fortran_env, only: dp => real64
  use mpi
  use weft
  implicit none

  integer, parameter :: cells = 96, reach = 2, features = 3, hidden = 16, waves = 4, fields = 4
  real(dp), parameter :: ring = 8*atan(1.0_dp), dx = ring/cells, dt = dx/2, nu = 0.02_dp
  type :: wave_sum
    real(dp) :: amplitude(waves), phase(waves)
  end type

  integer :: rank, ranks, own, first, steps, code
  type(c_ptr) :: comm, ctx, model, optim, tape
  real(dp) :: loss, plain, closed

  call MPI_Init(code)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, code)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, code)
  steps = number_after('--steps', 400)
  if (mod(cells, ranks) /= 0 .or. cells/ranks < reach) then
    if (rank == 0) print '(a, i0, a, i0, a, i0, a)', 'advection: ', ranks, ' ranks: should be a divisor of the ', cells, &
      ' cells, at most ', cells/reach
    call MPI_Finalize(code)
    stop 1
  end if
  own = cells/ranks
  first = rank*own

  comm = wf_comm_from_fortran(MPI_COMM_WORLD, 'auto'//c_null_char, wf_ctx_opts(dtype=WF_F64, seed=1, threads=1))
  call wf_must(wf_check(comm))
  ctx = wf_comm_ctx(comm)
  model = closure()
  optim = wf_lr_schedule(wf_adam(model, wf_adam_opts(lr=2d-2)), &
    wf_schedule_opts(kind=WF_SCHEDULE_COSINE, total=int(steps, c_int64_t)))
  optim = wf_multi_node(comm, optim, wf_multi_node_opts())
  tape = wf_tape_new(ctx)
  call wf_must(wf_check(optim))
  loss = train()
  plain = error_after(100, .false.)
  closed = error_after(100, .true.)
  if (rank == 0) then
    print '(a, i0, a, i0, a, es9.2)', 'trained ', steps, ' steps on ', ranks, ' ranks, loss ', loss
    print '(2(a, f0.4))', 'error after 100 steps: upwind 0', plain, ', with the closure 0', closed
  end if

  call wf_tape_free(tape)
  call wf_optim_free(optim)
  call wf_layer_free(model)
  call wf_must(wf_comm_close(comm))
  call MPI_Finalize(code)
  if (.not. closed < plain/2) stop 2

contains

  function closure() result(layer)
    type(c_ptr) :: layer
    type(c_ptr), target :: part(3)
    part(1) = wf_linear(ctx, wf_linear_opts(in=features, out=hidden, no_bias=.true._c_bool))
    part(2) = wf_lambda(ctx, c_funloc(wf_tanh))
    part(3) = wf_linear(ctx, wf_linear_opts(in=hidden, out=1, no_bias=.true._c_bool))
    layer = wf_sequential(ctx, 3, c_loc(part))
    call wf_must(wf_check(layer))
  end function

  ! The mean loss of the last step, over all ranks.
  function train() result(last)
    real(dp) :: last
    real(dp), target :: x(features, own, fields), y(own, fields)
    real(dp) :: u(own), after(own), rate(own)
    type(wave_sum) :: waves_of
    type(c_ptr) :: input, wanted, error
    integer :: step, field
    last = huge(last)
    do step = 1, steps
      do field = 1, fields
        waves_of = random_waves(step*fields + field)
        u = exact(waves_of, 0.0_dp)
        after = exact(waves_of, dt)
        call upwind(u, rate, x(:, :, field))
        y(:, field) = (after - u)/dt - rate
      end do
      input = wf_tensor_wrap(ctx, WF_F64, wf_shape_of([own*fields, features]), c_loc(x), wf_wrap_opts())
      wanted = wf_tensor_wrap(ctx, WF_F64, wf_shape_of([own*fields, 1]), c_loc(y), wf_wrap_opts())
      error = wf_mse(wf_apply(model, wf_input(tape, input)), wf_input(tape, wanted))
      call wf_must(wf_optim_step(optim, error)) ! sums the gradients of all ranks
      last = wf_item(error)
      call wf_must(wf_tape_reset(tape))
      call wf_tensor_free(input)
      call wf_tensor_free(wanted)
    end do
  end function

  ! How far the solver is from the exact solution after n steps, in parts of it: a field that was never trained on.
  function error_after(n, corrects) result(error)
    integer, intent(in) :: n
    logical, intent(in) :: corrects
    real(dp) :: error
    real(dp) :: u(own), rate(own), truth(own), square(2), squares(2)
    real(dp), target :: x(features, own), correction(own)
    type(wave_sum) :: waves_of
    integer :: step
    waves_of = random_waves(0)
    u = exact(waves_of, 0.0_dp)
    do step = 1, n
      call upwind(u, rate, x)
      if (corrects) then
        call correct(x, correction)
        rate = rate + correction
      end if
      u = u + dt*rate
    end do
    truth = exact(waves_of, n*dt)
    square = [sum((u - truth)**2), sum(truth**2)]
    call MPI_Allreduce(square, squares, 2, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, code)
    error = sqrt(squares(1)/squares(2))
  end function

  subroutine correct(x, correction)
    real(dp), intent(in), target :: x(features, own)
    real(dp), intent(out), target :: correction(own)
    type(c_ptr) :: input, output
    input = wf_tensor_wrap(ctx, WF_F64, wf_shape_of([own, features]), c_loc(x), wf_wrap_opts())
    output = wf_apply(model, wf_input(tape, input))
    call wf_must(wf_tensor_export(wf_value(output), c_loc(correction), int(own, c_size_t)*8))
    call wf_must(wf_tape_reset(tape))
    call wf_tensor_free(input)
  end subroutine

  ! The scheme's rate of change of the cells that this rank owns, and what the closure reads of each of them.
  subroutine upwind(u, rate, x)
    real(dp), intent(in) :: u(own)
    real(dp), intent(out) :: rate(own), x(features, own)
    real(dp) :: wide(1 - reach:own + reach), curvature(0:own + 1)
    integer :: i
    wide(1:own) = u
    call exchange_halos(wide)
    curvature = (wide(-1:own) - 2*wide(0:own + 1) + wide(1:own + 2))/dx**2
    rate = (wide(0:own - 1) - wide(1:own))/dx + nu*curvature(1:own)
    do i = 1, own
      x(:, i) = curvature(i - 1:i + 1)/waves**2
    end do
  end subroutine

  ! The program's own messages, beside those of the library.
  subroutine exchange_halos(wide)
    real(dp), intent(inout) :: wide(1 - reach:own + reach)
    integer :: left, right
    left = modulo(rank - 1, ranks)
    right = modulo(rank + 1, ranks)
    call MPI_Sendrecv(wide(own - reach + 1), reach, MPI_DOUBLE_PRECISION, right, 1, wide(1 - reach), reach, &
      MPI_DOUBLE_PRECISION, left, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE, code)
    call MPI_Sendrecv(wide(1), reach, MPI_DOUBLE_PRECISION, left, 2, wide(own + 1), reach, &
      MPI_DOUBLE_PRECISION, right, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE, code)
  end subroutine

  function exact(w, time) result(u)
    type(wave_sum), intent(in) :: w
    real(dp), intent(in) :: time
    real(dp) :: u(own)
    integer :: i, k
    u = 0
    do k = 1, waves
      do i = 1, own
        u(i) = u(i) + w%amplitude(k)*exp(-nu*k**2*time)*sin(k*((first + i)*dx - time) + w%phase(k))
      end do
    end do
  end function

  ! The same on every rank: numbers of a linear congruence that begins at the field's number.
  function random_waves(number) result(w)
    integer, intent(in) :: number
    type(wave_sum) :: w
    integer(c_int64_t) :: state
    integer :: k, again
    state = number
    do k = 1, waves
      do again = 1, 2
        state = modulo(state*1103515245_c_int64_t + 12345, 2147483648_c_int64_t)
      end do
      w%amplitude(k) = real(state, dp)/2147483648.0_dp/k
      state = modulo(state*1103515245_c_int64_t + 12345, 2147483648_c_int64_t)
      w%phase(k) = ring*real(state, dp)/2147483648.0_dp
    end do
  end function

  function number_after(name, otherwise) result(number)
    character(len=*), intent(in) :: name
    integer, intent(in) :: otherwise
    integer :: number, i, bad
    character(len=32) :: word
    number = otherwise
    do i = 1, command_argument_count() - 1
      call get_command_argument(i, word)
      if (word /= name) cycle
      call get_command_argument(i + 1, word)
      read (word, *, iostat=bad) number
      if (bad == 0 .and. number > 0) cycle
      if (rank == 0) print '(5a)', 'advection: ', name, ' ', trim(word), ': should be a positive number'
      call MPI_Finalize(code)
      stop 1
    end do
  end function
end program
